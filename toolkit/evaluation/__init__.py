"""How right the confidence is: metrics with their intervals, reports, and figures."""
