"""The explorer's tabs: components, and what happens on each event."""
