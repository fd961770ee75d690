"""The one road into the data: reading, writing and operating, with all that checks and decides on it."""
