"""Where text comes from and how it becomes tokens: sources, chat formatting and loss masks, filters, packing, the token store."""
