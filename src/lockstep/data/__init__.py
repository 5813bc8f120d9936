"""Where text comes from and how it becomes tokens: sources, chats and loss masks, filters, packing, the token store."""
