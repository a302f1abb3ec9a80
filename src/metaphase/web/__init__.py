"""What listens: pages in a browser and the servers behind them."""
