"""The apply side: which batches a run takes, whether a change may be applied, and the account of what happened."""
