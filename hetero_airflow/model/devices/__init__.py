"""What is known of kinds of devices: their names, speeds and links, and what their errors say about their health."""
