// What one view leaves for another: the prompt, and the text and model that Look begins with.

export const shared = { prompt: "", text: "", model: null };
