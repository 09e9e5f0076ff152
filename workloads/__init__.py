"""Models, parallel plans, training iterations, inference services and the fleet."""
