"""Object stores (ADR-20): reading their objects, and putting some."""
