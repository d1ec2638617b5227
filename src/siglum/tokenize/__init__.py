"""Stage 2b: vectors become codes (sigla) by a quantiser, residual unless told otherwise."""
