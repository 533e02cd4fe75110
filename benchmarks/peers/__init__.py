"""The other clients. A peer that is not installed is left out, and a line says so."""
