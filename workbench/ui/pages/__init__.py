"""One file per tab."""
