// @ts-check
/**
 * The Markdown that models write, as DOM nodes: paragraphs, headings, lists, quotes, rules, fenced and inline code,
 * bold, italic, links. Never by the HTML parser: every character of the source ends in a text node, or in the href
 * of a link to http, https or mailto.
 */

/** @typedef {{kind: string, source: string, level: number}} Block */

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const MAX_DEPTH = 8;

/** @type {WeakMap<HTMLElement, {block: Block, node: HTMLElement}[]>} */
const rendered = new WeakMap();

/**
 * Makes container show source. Called again with a longer source it touches only the blocks that changed, so that a
 * streaming answer costs its last paragraph and a selection above it survives.
 * @param {HTMLElement} container @param {string} source
 */
export function render(container, source) {
  const old = rendered.get(container) || [];
  const blocks = split(source);
  const next = blocks.map((block, i) => {
    const was = old[i];
    if (was && was.block.kind === block.kind && was.block.source === block.source && was.block.level === block.level) return was;
    if (was && was.block.kind === 'code' && block.kind === 'code' && was.block.level === block.level && language(was.block) === language(block)) {
      /** @type {HTMLElement} */ (was.node.querySelector('code')).textContent = codeText(block); // keeps focus and scroll
      return { block, node: was.node };
    }
    const node = element(block, 0);
    if (was) was.node.replaceWith(node);
    else container.append(node);
    return { block, node };
  });
  for (const { node } of old.slice(next.length)) node.remove();
  rendered.set(container, next);
}

/** @param {string} source @returns {Block[]} */
export function split(source) {
  const lines = source.replace(/\r\n?/g, '\n').split('\n');
  /** @type {Block[]} */ const blocks = [];
  let i = 0;
  while (i < lines.length) {
    if (lines[i].trim() === '') {
      i++;
      continue;
    }
    const [kind, end, level] = extent(lines, i);
    blocks.push({ kind, source: lines.slice(i, end).join('\n'), level });
    i = end;
  }
  return blocks;
}

/** @param {string[]} lines @param {number} i @returns {[string, number, number]} kind, line after it, heading level */
function extent(lines, i) {
  const line = lines[i];
  const fence = FENCE.exec(line);
  if (fence) {
    for (let j = i + 1; j < lines.length; j++) {
      const t = lines[j].trim();
      if (t.length >= fence[1].length && t === fence[1][0].repeat(t.length)) return ['code', j + 1, fence[1].length];
    }
    return ['code', lines.length, fence[1].length];
  }
  const heading = HEADING.exec(line);
  if (heading) return ['heading', i + 1, heading[1].length];
  if (RULE.test(line)) return ['rule', i + 1, 0];
  let j = i + 1;
  if (QUOTE.test(line)) {
    while (j < lines.length && QUOTE.test(lines[j])) j++;
    return ['quote', j, 0];
  }
  if (ITEM.test(line)) {
    while (j < lines.length && continuesList(lines, j)) j++;
    return ['list', j, 0];
  }
  while (j < lines.length && lines[j].trim() !== '' && !startsBlock(lines[j])) j++;
  return ['paragraph', j, 0];
}

/** @param {string} line */
function startsBlock(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
}

/** @param {string[]} lines @param {number} j */
function continuesList(lines, j) {
  if (lines[j].trim() !== '') return ITEM.test(lines[j]) || /^\s/.test(lines[j]) || !(startsBlock(lines[j]) || lines[j - 1].trim() === '');
  const next = lines[j + 1];
  return next !== undefined && (ITEM.test(next) || (/^\s+\S/.test(next)));
}

/** @param {Block} block @param {number} depth @returns {HTMLElement} */
function element(block, depth) {
  switch (block.kind) {
    case 'code':
      return codeBlock(block);
    case 'heading': {
      // The page has its own headings above these.
      const h = document.createElement(`h${Math.min(6, block.level + 3)}`);
      inline(h, /** @type {RegExpExecArray} */ (HEADING.exec(block.source))[2], 0);
      return h;
    }
    case 'rule':
      return document.createElement('hr');
    case 'quote': {
      const q = document.createElement('blockquote');
      const inner = block.source.split('\n').map((l) => l.replace(QUOTE, '')).join('\n');
      appendBlocks(q, inner, depth + 1);
      return q;
    }
    case 'list':
      return list(block.source, depth);
    default: {
      const p = document.createElement('p');
      inline(p, block.source.split('\n').map((l) => l.trim()).join('\n'), 0);
      return p;
    }
  }
}

/** @param {HTMLElement} parent @param {string} source @param {number} depth */
function appendBlocks(parent, source, depth) {
  if (depth > MAX_DEPTH) {
    parent.append(source);
    return;
  }
  for (const block of split(source)) parent.append(element(block, depth));
}

/** @param {string} source @param {number} depth @returns {HTMLElement} */
function list(source, depth) {
  const lines = source.split('\n');
  const first = /** @type {RegExpExecArray} */ (ITEM.exec(lines[0]));
  const indent = first[1].length;
  const ordered = /\d/.test(first[2]);
  const el = document.createElement(ordered ? 'ol' : 'ul');
  if (ordered && parseInt(first[2], 10) !== 1) /** @type {HTMLOListElement} */ (el).start = parseInt(first[2], 10);
  /** @type {string[][]} */ const items = [];
  for (const line of lines) {
    const m = ITEM.exec(line);
    if (m && m[1].length <= indent + 1) items.push([m[3]]);
    else items[items.length - 1].push(line.replace(/^\s{1,4}/, ''));
  }
  for (const item of items) {
    const li = document.createElement('li');
    const blocks = split(item.join('\n'));
    if (blocks[0]?.kind === 'paragraph') inline(li, /** @type {Block} */ (blocks.shift()).source, 0);
    const rest = blocks.map((b) => b.source).join('\n\n');
    if (rest) appendBlocks(li, rest, depth + 1);
    el.append(li);
  }
  return el;
}

/** @param {Block} block */
function language(block) {
  return (FENCE.exec(block.source.split('\n', 1)[0])?.[2] || '').trim().split(/\s+/)[0];
}

/** @param {Block} block */
function codeText(block) {
  const lines = block.source.split('\n');
  const last = lines[lines.length - 1].trim();
  const closed = lines.length > 1 && last.length >= block.level && /^(`+|~+)$/.test(last);
  return lines.slice(1, closed ? -1 : undefined).join('\n');
}

/** @param {Block} block */
function codeBlock(block) {
  const figure = document.createElement('figure');
  figure.className = 'code';
  const bar = document.createElement('figcaption');
  const lang = document.createElement('span');
  lang.textContent = language(block) || 'code';
  const copy = document.createElement('button');
  copy.type = 'button';
  copy.className = 'quiet';
  copy.dataset.copy = 'code';
  copy.textContent = 'Copy';
  copy.setAttribute('aria-label', 'Copy this code');
  bar.append(lang, copy);
  const pre = document.createElement('pre');
  pre.tabIndex = 0; // it scrolls sideways: reachable by keyboard
  pre.setAttribute('aria-label', 'Code');
  pre.setAttribute('role', 'region');
  const code = document.createElement('code');
  code.textContent = codeText(block);
  pre.append(code);
  figure.append(bar, pre);
  return figure;
}

const WORD = /[\p{L}\p{N}_]/u;

/**
 * Appends text with its inline marks to parent.
 * @param {HTMLElement} parent @param {string} text @param {number} depth
 */
function inline(parent, text, depth) {
  let plain = '';
  const flush = () => {
    if (plain) parent.append(plain);
    plain = '';
  };
  let i = 0;
  while (i < text.length) {
    const found = depth < MAX_DEPTH ? mark(text, i, depth) : null;
    if (found) {
      flush();
      parent.append(found.node);
      i = found.end;
    } else if (text[i] === '\\' && /[!-/:-@[-`{-~]/.test(text[i + 1] || '')) {
      plain += text[i + 1];
      i += 2;
    } else {
      // A run of the same mark that opens nothing is passed over as a whole.
      let end = i + 1;
      if ('*_`'.includes(text[i])) while (text[end] === text[i]) end++;
      plain += text.slice(i, end);
      i = end;
    }
  }
  flush();
}

/** @param {string} text @param {number} i @param {number} depth @returns {{node: Node, end: number}|null} */
function mark(text, i, depth) {
  switch (text[i]) {
    case '`':
      return codeSpan(text, i);
    case '*':
    case '_':
      return emphasis(text, i, depth);
    case '[':
      return link(text, i, depth);
    case 'h':
      return bareLink(text, i);
    default:
      return null;
  }
}

/** @param {string} text @param {number} i */
function codeSpan(text, i) {
  const ticks = /** @type {RegExpExecArray} */ (/^`+/.exec(text.slice(i)))[0];
  for (let j = text.indexOf(ticks, i + ticks.length); j !== -1; j = text.indexOf(ticks, j)) {
    let end = j + ticks.length;
    while (text[end] === '`') end++;
    if (end - j === ticks.length) {
      const code = document.createElement('code');
      code.textContent = text.slice(i + ticks.length, j).replace(/^ (.*\S.*) $/s, '$1');
      return { node: code, end };
    }
    j = end;
  }
  return null;
}

/** @param {string} text @param {number} i @param {number} depth */
function emphasis(text, i, depth) {
  const c = text[i];
  const size = text[i + 1] === c ? 2 : 1;
  const start = i + size;
  if (start >= text.length || /\s/.test(text[start])) return null;
  if (c === '_' && i > 0 && WORD.test(text[i - 1])) return null;
  for (let j = text.indexOf(c, start); j !== -1;) {
    let run = j;
    while (text[run] === c) run++;
    const fits = size === 2 ? run - j >= 2 : run - j === 1 || run - j === 3;
    if (fits && j > start && !/\s/.test(text[j - 1]) && !(c === '_' && WORD.test(text[run] || ''))) {
      const close = run - size;
      const node = document.createElement(size === 2 ? 'strong' : 'em');
      inline(node, text.slice(start, close), depth + 1);
      return { node, end: run };
    }
    j = text.indexOf(c, run);
  }
  return null;
}

/** @param {string} text @param {number} i @param {number} depth */
function link(text, i, depth) {
  const m = /^\[((?:[^\[\]\\]|\\.){1,500})\]\(\s*<?([^\s()<>]{1,2000}(?:\([^\s()<>]{0,500}\)[^\s()<>]{0,500})?)>?(?:\s+"[^"]{0,500}")?\s*\)/.exec(text.slice(i, i + 4000));
  if (!m) return null;
  const node = anchor(m[2]);
  if (!node) return null;
  inline(node, m[1], depth + 1);
  return { node, end: i + m[0].length };
}

/** @param {string} text @param {number} i */
function bareLink(text, i) {
  if (i > 0 && WORD.test(text[i - 1])) return null;
  const m = /^https?:\/\/[^\s<>"`]+/.exec(text.slice(i, i + 2000));
  if (!m) return null;
  let url = m[0].replace(/[.,;:!?'*_]+$/, '');
  if (url.endsWith(')') && !url.includes('(')) url = url.slice(0, -1).replace(/[.,;:!?'*_]+$/, '');
  const node = anchor(url);
  if (!node) return null;
  node.textContent = url;
  return { node, end: i + url.length };
}

/** @param {string} href @returns {HTMLAnchorElement|null} */
function anchor(href) {
  let url;
  try {
    url = new URL(href);
  } catch {
    return null;
  }
  if (!['http:', 'https:', 'mailto:'].includes(url.protocol)) return null;
  const a = document.createElement('a');
  a.href = url.href;
  a.target = '_blank';
  a.rel = 'noopener noreferrer nofollow';
  return a;
}
