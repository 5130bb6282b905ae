"""Winners put back into the model as torch.library operators, by the partitioner that cut them out."""
