"""The lab: benches, experiments, theory, and the drawn world; the library never imports it."""
