"""What one caller can cost the others."""
