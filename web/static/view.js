// @ts-check
/** A turn, and a message that is not a turn yet, on the page. */

import { render } from './markdown.js';

/** @typedef {import('./conversation.js').Turn} Turn */
/** @typedef {{again: (text: string) => void, edit: (text: string) => void, stop: (turn: number) => void}} Actions */

/**
 * @param {string} tag @param {string} className @param {string} [text]
 * @returns {HTMLElement}
 */
function el(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

/** @param {string} label @param {() => void} onclick @param {string} [description] @returns {HTMLButtonElement} */
function button(label, onclick, description) {
  const b = /** @type {HTMLButtonElement} */ (el('button', 'quiet', label));
  b.type = 'button';
  b.onclick = onclick;
  if (description) b.setAttribute('aria-label', description);
  return b;
}

/** What the user wrote. @param {string} text */
function said(text) {
  const box = el('div', 'said');
  box.append(el('h3', 'unseen', 'You'), el('p', 'text', text));
  return box;
}

/** A turn on the page. */
export class TurnView {
  /** @param {Turn} turn @param {Actions} actions */
  constructor(turn, actions) {
    this.#actions = actions;
    this.element = el('article', 'turn');
    this.element.dataset.turn = String(turn.id);
    this.element.setAttribute('aria-label', `Exchange ${turn.id}`);
    this.#said = said('');
    this.#answer = el('div', 'answer');
    this.#answer.append(el('h3', 'unseen', 'Answer'), this.#prose, this.#progress, this.#note, this.#foot);
    this.element.append(this.#said, this.#answer);
  }

  /** @type {Actions} */ #actions;
  /** @type {HTMLElement} */ #said;
  /** @type {HTMLElement} */ #answer;
  #prose = el('div', 'prose');
  #progress = el('p', 'progress');
  #note = el('div', 'note');
  #foot = el('div', 'foot');
  #ended = false;

  /** Shows the turn as it is now. @param {Turn} turn @param {boolean} live it is the one that runs */
  update(turn, live) {
    const words = turn.erased ? 'This message was erased.' : turn.text;
    const text = /** @type {HTMLElement} */ (this.#said.querySelector('.text'));
    if (text.textContent !== words) text.textContent = words;
    this.element.classList.toggle('erased', turn.erased);
    render(this.#prose, turn.answer);
    this.element.classList.toggle('streaming', !turn.terminal && turn.answer !== '');
    this.#showProgress(turn, live);
    if (turn.terminal && !this.#ended) {
      this.#ended = true;
      this.#showEnd(turn);
    }
  }

  /** @param {Turn} turn @param {boolean} live */
  #showProgress(turn, live) {
    const words = progress(turn, live);
    this.#progress.hidden = words === '';
    if (this.#progress.dataset.words === words) return;
    this.#progress.dataset.words = words;
    this.#progress.replaceChildren(words);
    if (words && !live) this.#progress.append(' ', button('Take back', () => this.#actions.stop(turn.id), 'Take back this waiting message'));
  }

  /** @param {Turn} turn */
  #showEnd(turn) {
    const [kind, words, hint] = ending(turn);
    if (words) {
      this.#note.dataset.kind = kind;
      this.#note.append(el('p', 'why', words));
      if (hint) this.#note.append(el('p', 'hint', hint));
      if (kind !== 'plain' && !turn.erased) this.#foot.append(button('Try again', () => this.#actions.again(turn.text), 'Try again with the same message'));
    }
    const facts = footnotes(turn);
    if (turn.answer) {
      const copy = button('Copy', () => {}, 'Copy this answer');
      copy.dataset.copy = 'answer';
      this.#foot.append(copy);
    }
    if (facts) this.#foot.append(el('span', 'facts', facts));
  }
}

/** @param {Turn} turn @param {boolean} live @returns {string} what the open turn is waiting for, or '' */
function progress(turn, live) {
  if (turn.terminal) return '';
  const s = turn.status;
  if (!live || s?.phase === 'waiting') return 'Waits for the answer before it.';
  if (turn.answer) return '';
  const percent = s && s.total > 0 ? ` ${Math.floor((100 * s.done) / s.total)} %` : '';
  switch (s?.phase) {
    case 'queued':
      return s.position > 1 ? `In line for the model: ${s.position} of ${Math.max(s.waiting, s.position)}` : 'Next in line for the model';
    case 'loading':
      return `Loading the model${percent || '…'}`;
    case 'prefill':
      return `Reading${percent || '…'}`;
    default:
      return 'Thinking…';
  }
}

// What to do about these is the button beside them; the protocol's hint speaks to programs.
const ASK_AGAIN = new Set(['model_failed', 'attempts_exhausted', 'interrupted', 'internal']);

/** @param {Turn} turn @returns {[string, string, string]} kind of note, why it ended, what to do; no words if there is nothing to say */
function ending(turn) {
  const t = turn.terminal;
  const message = sentence(t.error?.message || '');
  const hint = ASK_AGAIN.has(t.error?.code) ? '' : sentence(t.error?.hint || '');
  switch (t.outcome) {
    case 'OUTCOME_COMPLETED':
      return ['plain', t.finishReason === 'length' ? 'The answer ends here: it reached its length limit.' : '', ''];
    case 'OUTCOME_STOPPED':
      return ['stopped', turn.answer ? 'Stopped.' : 'Stopped before it began.', ''];
    case 'OUTCOME_SUPERSEDED':
      return ['plain', 'A later message took its place.', ''];
    case 'OUTCOME_BLOCKED':
      return ['blocked', message || 'This answer was withheld.', hint];
    default:
      return ['failed', `${turn.answer ? 'The answer broke off.' : 'There is no answer.'} ${message}`.trim(), hint];
  }
}

/** @param {Turn} turn @returns {string} */
function footnotes(turn) {
  const parts = [];
  if (turn.attempt?.model) parts.push(turn.attempt.model);
  const u = turn.terminal?.usage;
  if (u?.completionTokens) parts.push(`${u.completionTokens} ${u.completionTokens === 1 ? 'token' : 'tokens'}`);
  if (u?.completionTokens > 1 && u.completionMs > 0) parts.push(`${(u.completionTokens / (u.completionMs / 1000)).toFixed(0)}/s`);
  if (turn.attempts > 1) parts.push('continued after a restart');
  if (turn.attempt?.droppedMessages) parts.push(`without the ${turn.attempt.droppedMessages} oldest messages`);
  return parts.join(' · ');
}

/** @param {string} s @returns {string} with a capital and a full stop */
export function sentence(s) {
  if (!s) return '';
  const capital = s[0].toUpperCase() + s.slice(1);
  return /[.!?…]$/.test(capital) ? capital : `${capital}.`;
}

/** A message on its way: shown at once, replaced by its turn. */
export class UnsentView {
  /** @param {string} text @param {Actions} actions */
  constructor(text, actions) {
    this.#text = text;
    this.#actions = actions;
    this.element = el('article', 'turn unsent');
    this.element.setAttribute('aria-label', 'Message on its way');
    this.#note = el('div', 'note');
    this.#progress.hidden = true;
    const box = el('div', 'answer');
    box.append(this.#progress, this.#note);
    this.element.append(said(text), box);
  }

  #text;
  #actions;
  #progress = el('p', 'progress');
  #note;

  /** It waits. @param {string} words why, or '' */
  waiting(words) {
    this.#progress.hidden = words === '';
    this.#progress.textContent = words;
  }

  /** It was refused for good. @param {string} message @param {string} hint @param {() => void} dismiss */
  refused(message, hint, dismiss) {
    this.waiting('');
    this.#note.dataset.kind = 'failed';
    this.#note.replaceChildren(el('p', 'why', `Not sent. ${sentence(message)}`));
    if (hint) this.#note.append(el('p', 'hint', sentence(hint)));
    this.#note.append(
      button('Try again', () => { dismiss(); this.#actions.again(this.#text); }, 'Try again to send this message'),
      button('Edit', () => { dismiss(); this.#actions.edit(this.#text); }, 'Edit this message'),
    );
  }
}
