// @ts-check
import { Conversation } from '../conversation.js';
import { equal } from './check.js';

const entries = [
  { offset: 1, time: 1, turn: 1, kind: 'userMessage', body: { messageId: 'a', text: 'first' } },
  { offset: 2, time: 2, turn: 1, kind: 'attempt', body: { number: 1, model: 'm' } },
  { offset: 3, time: 3, turn: 1, kind: 'chunk', body: { text: 'one ' } },
  { offset: 4, time: 4, turn: 4, kind: 'userMessage', body: { messageId: 'b', text: 'second' } }, // queued in mid-turn
  { offset: 5, time: 5, turn: 1, kind: 'attempt', body: { number: 2, model: 'm', resumedStep: 1 } },
  { offset: 6, time: 6, turn: 1, kind: 'chunk', body: { text: 'two' } },
  { offset: 7, time: 7, turn: 0, kind: 'state', body: { key: 'title', value: btoa('Tides') } },
  { offset: 8, time: 8, turn: 1, kind: 'terminal', body: { outcome: 'OUTCOME_COMPLETED' } },
  { offset: 9, time: 9, turn: 4, kind: 'chunk', body: { text: 'three' } },
];

/** @param {Conversation} c */
const summary = (c) => c.turns.map((t) => [t.id, t.text, t.answer, t.attempts, t.terminal?.outcome || '']);
const want = [[1, 'first', 'one two', 2, 'OUTCOME_COMPLETED'], [4, 'second', 'three', 0, '']];

export const conversationTests = {
  'conversation in order'() {
    const c = new Conversation();
    for (const e of entries) c.apply(e);
    equal(summary(c), want, 'turns');
    equal(c.state('title'), 'Tides', 'title');
    equal(c.open.map((t) => t.id), [4], 'open');
  },

  'conversation from its end backwards'() {
    const c = new Conversation();
    for (const e of entries.slice(5)) c.apply(e);
    equal([c.first, c.neededFrom], [6, 1], 'what is missing');
    equal(c.open, [], 'a turn is not shown before its first entry');
    for (const e of entries.slice(0, 5).reverse()) c.apply(e);
    equal(summary(c), want, 'turns');
    equal(c.neededFrom, 1, 'nothing is missing');
  },

  'conversation keeps a status that comes before its turn'() {
    const c = new Conversation();
    equal(c.applyStatus({ turn: 1, phase: 'loading', position: 0, waiting: 0, done: 1, total: 4 }), null, 'no turn yet');
    c.apply(entries[0]);
    equal(c.turn(1)?.status?.phase, 'loading', 'status');
  },

  'conversation shows an erased message as erased'() {
    const c = new Conversation();
    c.apply({ offset: 1, time: 1, turn: 1, kind: 'erased', body: {} });
    equal([c.turns[0].erased, c.turns[0].begun], [true, true], 'erased');
  },
};
