"""Stage 5: query vectors become hits."""
