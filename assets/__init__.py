"""What is made from a stream's records: its assets, the Spark job behind them, committed output."""
