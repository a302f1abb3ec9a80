"""From a manifest and a reference standard to CNN5, and how good each network is on test slides."""
