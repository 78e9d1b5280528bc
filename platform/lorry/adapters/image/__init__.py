"""An adapter's host image, ready to be copied to the device. Imports torch."""
