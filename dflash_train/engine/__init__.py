"""How training is run: processes, sharding, the optimizer, the loop. The home of torch.distributed."""
