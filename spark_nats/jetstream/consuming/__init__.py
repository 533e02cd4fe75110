"""Consumers, ephemeral and durable."""
