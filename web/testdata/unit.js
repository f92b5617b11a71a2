// @ts-check
// Unit tests of the page's modules, run in the browser; results go to window.results.

import { socketTests } from './socket.js';
import { markdownTests } from './markdown.js';
import { conversationTests } from './conversation.js';

const results = [];
for (const [name, test] of Object.entries({ ...socketTests, ...markdownTests, ...conversationTests })) {
  try {
    await test();
    results.push({ name, error: '' });
  } catch (e) {
    results.push({ name, error: String(e?.stack || e) });
  }
}
window.results = results;
