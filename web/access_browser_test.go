//go:build browser

package web_test

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/holdfast-ai/holdfast/internal/wiretest"
	"github.com/holdfast-ai/holdfast/web"
)

// audit is what a page owes to everyone, computed in the page: a list of what is wrong.
const audit = `(() => {
	const wrong = [];
	const shown = (e) => e.checkVisibility({ visibilityProperty: true }) && e.getClientRects().length > 0;
	const all = (selector) => [...document.querySelectorAll(selector)].filter(shown);
	const where = (e) => e.tagName.toLowerCase() + (e.id ? '#' + e.id : '.' + e.className) + ' ' + (e.textContent || '').trim().slice(0, 30);

	// Names.
	for (const e of all('button, a, input, textarea, [role=region], pre[tabindex], article, nav, dialog')) {
		const labelled = (e.getAttribute('aria-labelledby') || '').split(' ').map((id) => document.getElementById(id)?.textContent || '').join('');
		const name = e.getAttribute('aria-label') || labelled || e.labels?.[0]?.textContent || (/^(BUTTON|A)$/.test(e.tagName) ? e.textContent : '');
		if (!name?.trim()) wrong.push('no name: ' + where(e));
	}
	// A visible word of a control is part of its name.
	for (const e of all('button[aria-label]')) {
		if (!e.getAttribute('aria-label').toLowerCase().includes(e.textContent.trim().toLowerCase())) wrong.push('label without its word: ' + where(e));
	}
	// Ids are unique and references lead somewhere.
	const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
	if (new Set(ids).size !== ids.length) wrong.push('an id is used twice');
	for (const attribute of ['for', 'aria-labelledby', 'aria-describedby']) {
		for (const e of document.querySelectorAll('[' + attribute + ']')) {
			for (const id of e.getAttribute(attribute).split(' ')) if (!document.getElementById(id)) wrong.push(attribute + ' leads nowhere: ' + id);
		}
	}
	// The document.
	if (!document.documentElement.lang) wrong.push('no language');
	if (!document.title) wrong.push('no title');
	for (const tag of ['main', 'header', 'footer', 'h1']) if (document.querySelectorAll(tag).length !== 1) wrong.push('not one ' + tag);
	let level = 0;
	for (const h of document.querySelectorAll('body > header :is(h1,h2,h3,h4,h5,h6), main :is(h1,h2,h3,h4,h5,h6)')) {
		const n = Number(h.tagName[1]);
		if (n > level + 1) wrong.push('heading skips a level: ' + where(h));
		level = n;
	}
	for (const e of document.querySelectorAll('[tabindex]')) if (e.tabIndex > 0) wrong.push('positive tabindex: ' + where(e));

	// Contrast of every text with what is behind it.
	const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
	const rgba = (color) => {
		canvas.clearRect(0, 0, 1, 1);
		canvas.fillStyle = color;
		canvas.fillRect(0, 0, 1, 1);
		return [...canvas.getImageData(0, 0, 1, 1).data];
	};
	const luminance = (c) => {
		const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const behind = (e) => {
		for (; e; e = e.parentElement) {
			const c = rgba(getComputedStyle(e).backgroundColor);
			if (c[3] === 255) return c;
			if (c[3] !== 0) wrong.push('translucent ground: ' + where(e));
		}
		return [255, 255, 255, 255];
	};
	const ratio = (a, b) => { const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
	let texts = 0;
	for (const e of all('body *')) {
		const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
		if (!own && !e.placeholder) continue;
		texts++;
		const styles = own ? [getComputedStyle(e)] : [getComputedStyle(e), getComputedStyle(e, '::placeholder')];
		for (const s of styles) {
			const got = ratio(rgba(s.color), behind(e));
			if (got < 4.5) wrong.push('contrast ' + got.toFixed(2) + ': ' + where(e));
		}
	}
	if (texts < 5) wrong.push('only ' + texts + ' texts were looked at');

	// Room: nothing wider than the page, and fingers find the buttons.
	if (document.documentElement.scrollWidth > innerWidth) wrong.push('the page scrolls sideways');
	for (const e of all('body *')) {
		const r = e.getBoundingClientRect();
		if (r.width > 1 && (r.right > innerWidth + 1 || r.left < -1) && !e.closest('pre')) wrong.push('out of the page: ' + where(e));
	}
	for (const e of all('button, input, textarea')) {
		const r = e.getBoundingClientRect();
		if (r.height < 24 || r.width < 24) wrong.push('too small: ' + where(e));
		if (matchMedia('(pointer: coarse)').matches && r.height < 36) wrong.push('too small for a finger: ' + where(e));
	}
	return wrong;
})()`

// TestAccess audits the page in its looks and states.
func TestAccess(t *testing.T) {
	br := browser(t)
	narrow := look{width: 320, height: 568, touch: true}
	for _, c := range []struct {
		name string
		look look
	}{{"desktop", desktop}, {"desktop-dark", desktopDark}, {"phone", phone}, {"phone-dark", phoneDark}, {"narrow", narrow}} {
		t.Run(c.name, func(t *testing.T) {
			s := wiretest.New(t, wiretest.Options{Web: web.Handler()})
			fill(s.Log("default/session/tides"))
			b := open(t, br, c.look, s.URL+"/#/a-session-with-a-name-that-is-longer-than-a-phone-is-wide")
			check := func(state string) {
				t.Helper()
				for _, wrong := range eval[[]string](b, audit) {
					t.Errorf("%s: %s", state, wrong)
				}
			}
			b.await(`!document.getElementById('welcome').hidden`)
			check("empty")
			b.js(`location.hash = '#/tides'`)
			b.await(ended(3))
			check("conversation")
			b.write("And now?")
			b.await(`document.querySelectorAll('article[data-turn]').length === 4 && !document.getElementById('stop').hidden`)
			check("waiting")
			b.js(`document.getElementById('sessions').click()`)
			check("dialog")
			b.picture(c.name + "-dialog")
		})
	}
}

// TestAnnouncements: a screen reader hears an answer once, whole, and not token by token.
func TestAnnouncements(t *testing.T) {
	next := make(chan struct{}, 100)
	s := serve(t, paced(script, next))
	b := open(t, browser(t), desktop, s.URL+"/#/bay")
	b.await(`!document.getElementById('welcome').hidden`)
	b.js(`window.heard = [];
		for (const e of document.querySelectorAll('[aria-live], [role=status], [role=alert], [role=log]')) {
			new MutationObserver(() => heard.push(e.textContent)).observe(e, { childList: true, characterData: true, subtree: true });
		}`)
	b.write("When?")
	for n := 1; n < 5; n++ {
		release(next, 1)
		b.await(says(1, words(n)))
	}
	if heard := eval[[]string](b, `heard`); len(heard) != 0 {
		t.Errorf("heard while the answer streams: %q", heard)
	}
	release(next, 50)
	b.await(`heard.length > 0`)
	if heard := eval[[]string](b, `heard`); len(heard) != 1 || strings.TrimSpace(heard[0]) != strings.TrimSpace(script) {
		t.Errorf("heard %q, want the answer once", heard)
	}
}

// TestReducedMotion: nothing moves for those who asked for that.
func TestReducedMotion(t *testing.T) {
	next := make(chan struct{}, 100)
	s := serve(t, paced(script, next))
	br := browser(t)
	for _, calm := range []bool{false, true} {
		l := desktop
		l.calm = calm
		b := open(t, br, l, s.URL+"/#/bay")
		if !calm {
			b.write("When?")
			release(next, 2)
		}
		b.await(says(1, words(2)))
		running := eval[int](b, `document.getAnimations().length`)
		if (running == 0) != calm {
			t.Errorf("reduced motion %v: %d animations", calm, running)
		}
	}
}

// TestVirtualKeyboard shrinks the visual viewport as a phone's keyboard does; the composer stays in sight.
func TestVirtualKeyboard(t *testing.T) {
	s := serve(t, echo)
	fill(s.Log("default/session/tides"))
	b := open(t, browser(t), phone, s.URL+"/#/tides")
	b.await(ended(3))
	b.js(`Object.defineProperty(visualViewport, 'height', { value: 400, configurable: true }); visualViewport.dispatchEvent(new Event('resize'))`)
	b.await(`document.getElementById('composer').getBoundingClientRect().bottom <= 400`)
	b.await(`(() => { const s = document.getElementById('scroller'); return s.scrollHeight - s.scrollTop - s.clientHeight < 2; })()`)
	b.js(`delete visualViewport.height; visualViewport.dispatchEvent(new Event('resize'))`)
	b.await(`document.getElementById('composer').getBoundingClientRect().bottom > 600`)
}

// TestTouchEnter: on a phone Enter is a new line and the button sends.
func TestTouchEnter(t *testing.T) {
	s := serve(t, echo)
	b := open(t, browser(t), phone, s.URL+"/#/bay")
	b.await(`!document.getElementById('welcome').hidden`)
	b.do(chromedp.SendKeys(chromedp.CSS("#text"), "one\rtwo"), chromedp.Tap(chromedp.CSS("#send")))
	b.await(`document.querySelector('.said .text')?.textContent === 'one\ntwo'`)
}
