"""One module for each verb of ``kedrl``, imported when the verb is given."""
