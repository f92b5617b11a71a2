// @ts-check
import { render } from '../markdown.js';
import { equal } from './check.js';

/** The DOM as text: tag(children), without the furniture of code blocks. @param {Node} node @returns {string} */
function shape(node) {
  if (node instanceof Text) return node.data;
  if (!(node instanceof HTMLElement)) return '';
  const inner = [...node.childNodes].map(shape).join('');
  if (node.tagName === 'FIGCAPTION') return `[${node.querySelector('span')?.textContent}]`;
  const href = node instanceof HTMLAnchorElement ? ` ${node.getAttribute('href')}` : '';
  const start = node instanceof HTMLOListElement && node.start !== 1 ? ` ${node.start}` : '';
  return `<${node.tagName.toLowerCase()}${href}${start}>${inner}</>`;
}

/** @param {string} source */
function shown(source) {
  const box = document.createElement('div');
  render(box, source);
  return [...box.childNodes].map(shape).join('');
}

/** @type {[string, string][]} */
const cases = [
  ['', ''],
  ['one\ntwo\n\nthree', '<p>one\ntwo</><p>three</>'],
  ['a **b *c* d** e', '<p>a <strong>b <em>c</> d</> e</>'],
  ['***both***', '<p><strong><em>both</></></>'],
  ['2 * 3 * 4 and snake_case_name', '<p>2 * 3 * 4 and snake_case_name</>'],
  ['an **open one', '<p>an **open one</>'],
  ['_a_ __b__ \\*c\\*', '<p><em>a</> <strong>b</> *c*</>'],
  ['`a*b*` and ``x`y``', '<p><code>a*b*</> and <code>x`y</></>'],
  ['`open', '<p>`open</>'],
  ['# Title #\ntext', '<h4>Title</><p>text</>'],
  ['#hashtag', '<p>#hashtag</>'],
  ['- a\n- b\n  - c\n- d', '<ul><li>a</><li>b<ul><li>c</></></><li>d</></>'],
  ['3. a\n4. b', '<ol 3><li>a</><li>b</></>'],
  ['- a\n\n  more\n\nafter', '<ul><li>a<p>more</></></><p>after</>'],
  ['- a\n  ```js\n  x()\n  ```', '<ul><li>a<figure>[js]<pre><code>x()</></></></></>'],
  ['> quoted **b**\n> more', '<blockquote><p>quoted <strong>b</>\nmore</></>'],
  ['---', '<hr></>'],
  ['```go\na := 1\n\nb\n```\nafter', '<figure>[go]<pre><code>a := 1\n\nb</></></><p>after</>'],
  ['```\nopen **x**', '<figure>[code]<pre><code>open **x**</></></>'],
  ['````\n```\n````', '<figure>[code]<pre><code>```</></></>'],
  ['[a *b*](https://x.org/q?a=1&b=2 "t")', '<p><a https://x.org/q?a=1&b=2>a <em>b</></></>'],
  ['see https://x.org/a_b_c.', '<p>see <a https://x.org/a_b_c>https://x.org/a_b_c</>.</>'],
  ['(https://x.org/a)', '<p>(<a https://x.org/a>https://x.org/a</>)</>'],
  ['[x](javascript:alert(1))', '<p>[x](javascript:alert(1))</>'],
  ['[x](data:text/html,hi) [y](//evil.org) [z](vbscript:a)', '<p>[x](data:text/html,hi) [y](//evil.org) [z](vbscript:a)</>'],
  ['<script>alert(1)</script> <img src=x onerror=alert(1)> &amp;', '<p><script>alert(1)</script> <img src=x onerror=alert(1)> &amp;</>'],
];

export const markdownTests = Object.fromEntries(cases.map(([source, want]) => [
  `markdown ${JSON.stringify(source)}`,
  () => equal(shown(source), want, 'shown'),
]));

markdownTests['markdown shows the same, however it arrives'] = () => {
  for (const [source] of cases) {
    const box = document.createElement('div');
    for (let n = 0; n <= source.length; n++) render(box, source.slice(0, n));
    equal([...box.childNodes].map(shape).join(''), shown(source), source);
  }
};

markdownTests['markdown leaves finished blocks alone while the last one grows'] = () => {
  const box = document.createElement('div');
  render(box, 'one\n\n```js\nx');
  const [p, code] = box.children;
  const pre = code.querySelector('pre');
  render(box, 'one\n\n```js\nx()\ny()');
  equal([box.children[0] === p, box.children[1] === code, code.querySelector('pre') === pre], [true, true, true], 'kept');
  equal(pre?.textContent, 'x()\ny()', 'code');
};

markdownTests['markdown links open elsewhere and tell nothing'] = () => {
  const box = document.createElement('div');
  render(box, 'https://x.org');
  const a = /** @type {HTMLAnchorElement} */ (box.querySelector('a'));
  equal([a.target, a.rel], ['_blank', 'noopener noreferrer nofollow'], 'link');
};

markdownTests['markdown takes hostile input in bounded time'] = () => {
  for (const bad of ['*'.repeat(20000), '**a '.repeat(5000), '[a]('.repeat(5000), '`a``'.repeat(5000), '> '.repeat(5000), '  - '.repeat(3000), '_a'.repeat(10000)]) {
    const started = performance.now();
    const text = document.createElement('div');
    render(text, bad);
    // Two orders above what it takes: this is about exponents, not speed.
    if (performance.now() - started > 20000) throw new Error(`too long: ${bad.slice(0, 12)}`);
  }
};
