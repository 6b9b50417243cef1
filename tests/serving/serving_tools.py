"""What tests of the service share."""

from __future__ import annotations

BASE = "http://127.0.0.1:8000"
