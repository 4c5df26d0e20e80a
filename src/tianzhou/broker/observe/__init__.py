"""What operators see: metrics, health, alarms, dashboard views and broker administration."""
