"""Parts of the fault campaign: what is broken on purpose, and how it is told whether anything went wrong."""
