"""The apply side: which batches a run takes, whether a change may pass, and the account of what happened."""
