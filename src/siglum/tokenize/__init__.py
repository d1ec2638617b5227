"""Stage 2b: vectors become codes (sigla) by residual quantisation."""
