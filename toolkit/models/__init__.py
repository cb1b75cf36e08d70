"""Who answers: base models, the bundled model, adapters, encoding, predictive distributions."""
