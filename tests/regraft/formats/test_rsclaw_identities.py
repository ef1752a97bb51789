"""How rsclaw names pages: per site, what becomes of an address, and which ones meet."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from harness import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regraft.formats.rsclaw.documents import TRACKER_PREFIX, TRACKERS, canonical_url, likely_page_key

QUICK = settings(max_examples=examples(300), deadline=None)
VD = "0123456789abcdef0123456789abcdef"

# --- sites -----------------------------------------------------------------------------------------------------------

GOOGLE = (
    # Only `source` goes of all that a search adds by itself.
    (
        "https://www.google.com/search?q=knowledge+base&sca_esv=5f1&source=hp&ei=A-c_1&iflsig=AL9&ved=0a&oq=k&gs_lp=Eg",
        "https://www.google.com/search?ei=A-c_1&gs_lp=Eg&iflsig=AL9&oq=k&q=knowledge+base&sca_esv=5f1&ved=0a",
    ),
    ("https://www.google.com/search?q=a%20b", "https://www.google.com/search?q=a+b"),
    ("https://www.google.com/search?q=c%2B%2B&start=10", "https://www.google.com/search?q=c%2B%2B&start=10"),
    (
        "https://www.google.com.hk/search?q=知识库&hl=zh-CN#ip=1",
        "https://www.google.com.hk/search?hl=zh-CN&q=%E7%9F%A5%E8%AF%86%E5%BA%93",
    ),
    ("https://www.google.com/search?q=a&_gl=1*x&gclid=Cj0&dclid=1", "https://www.google.com/search?q=a"),
)
ZHIHU = (
    (
        "https://www.zhihu.com/question/19550225/answer/12202130?utm_source=wechat_session&utm_oi=5551&utm_psn=17",
        "https://www.zhihu.com/question/19550225/answer/12202130",
    ),
    ("https://zhuanlan.zhihu.com/p/20751309?utm_id=0#h_1", "https://zhuanlan.zhihu.com/p/20751309"),
    ("https://www.zhihu.com/question/19550225?sort=created", "https://www.zhihu.com/question/19550225?sort=created"),
    (
        "https://www.zhihu.com/question/19550225/answer/12202130?share_code=5hXa&utm_psn=1",
        "https://www.zhihu.com/question/19550225/answer/12202130?share_code=5hXa",
    ),
)
GITHUB = (
    ("HTTPS://GitHub.COM/Owner/Repo?tab=readme-ov-file#usage", "https://github.com/Owner/Repo?tab=readme-ov-file"),
    (
        "https://github.com/owner/repo/issues?q=is%3Aopen+label%3Abug",
        "https://github.com/owner/repo/issues?q=is%3Aopen+label%3Abug",
    ),
    ("https://github.com/owner/repo/blob/main/a%20b.md#L10-L20", "https://github.com/owner/repo/blob/main/a%20b.md"),
    ("https://github.com/owner/repo/?ref=example.com&ref_src=twsrc", "https://github.com/owner/repo/"),
    ("https://user:secret@github.com:443/owner/repo.git", "https://user:secret@github.com/owner/repo.git"),
)
BILIBILI = (
    # The rule has `spm`, whole: neither this name nor `vd_source` is it.
    (
        f"https://www.bilibili.com/video/BV1xx411c7mD/?spm_id_from=333.1007&vd_source={VD}&p=2&t=30.5",
        f"https://www.bilibili.com/video/BV1xx411c7mD/?p=2&spm_id_from=333.1007&t=30.5&vd_source={VD}",
    ),
    (
        "https://www.bilibili.com/video/BV1xx411c7mD?share_session_id=2f9e186f&share_source=weixin&share_id=9&spm=a.b",
        "https://www.bilibili.com/video/BV1xx411c7mD?share_source=weixin",
    ),
    (
        "https://www.bilibili.com/video/BV1xx411c7mD?share_source=weixin&share_source=WEIXIN",
        "https://www.bilibili.com/video/BV1xx411c7mD?share_source=WEIXIN&share_source=weixin",
    ),
)
WEIBO = (
    (
        "https://weibo.com/1642634100/Ab12?refer_flag=1001030103_",
        "https://weibo.com/1642634100/Ab12?refer_flag=1001030103_",
    ),
    ("https://weibo.com/1642634100/Ab12?type=comment#_rnd1700", "https://weibo.com/1642634100/Ab12?type=comment"),
    (
        "https://s.weibo.com/weibo?q=%23%E7%9F%A5%E8%AF%86%23&Refer=top",
        "https://s.weibo.com/weibo?Refer=top&q=%23%E7%9F%A5%E8%AF%86%23",
    ),
    (
        "https://m.weibo.cn/status/4900?sourceType=weixin&wm=9006",
        "https://m.weibo.cn/status/4900?sourceType=weixin&wm=9006",
    ),
)
WIKIPEDIA = (
    ("https://zh.wikipedia.org/wiki/知识库#历史", "https://zh.wikipedia.org/wiki/%E7%9F%A5%E8%AF%86%E5%BA%93"),
    (
        "https://zh.wikipedia.org/wiki/%E7%9F%A5%E8%AF%86%E5%BA%93",
        "https://zh.wikipedia.org/wiki/%E7%9F%A5%E8%AF%86%E5%BA%93",
    ),
    # Escapes of a path stay as they are written.
    (
        "https://zh.wikipedia.org/wiki/%e7%9f%a5%e8%af%86%e5%ba%93",
        "https://zh.wikipedia.org/wiki/%e7%9f%a5%e8%af%86%e5%ba%93",
    ),
    ("https://en.wikipedia.org/wiki/C%2B%2B", "https://en.wikipedia.org/wiki/C%2B%2B"),
    ("https://en.wikipedia.org/wiki/C++", "https://en.wikipedia.org/wiki/C++"),
    (
        "https://zh.wikipedia.org/w/index.php?title=知识库&oldid=1&action=history",
        "https://zh.wikipedia.org/w/index.php?action=history&oldid=1&title=%E7%9F%A5%E8%AF%86%E5%BA%93",
    ),
    ("https://en.wikipedia.org/wiki/RAG?wprov=sfla1", "https://en.wikipedia.org/wiki/RAG?wprov=sfla1"),
)
#: What is of no site: each decision about a URL's parts.
PARTS = (
    ("http://EXAMPLE.com:80", "http://example.com/"),
    ("https://example.com:80/", "https://example.com:80/"),
    ("  https://exa\tmple.com/a\nb  ", "https://example.com/ab"),
    ("https:\\\\example.com\\a", "https://example.com/a"),
    ("https://münchen.example/", "https://xn--mnchen-3ya.example/"),
    ("https://例え.テスト/ü", "https://xn--r8jz45g.xn--zckzah/%C3%BC"),
    ("http://0x7f.1/", "http://127.0.0.1/"),
    ("http://[0:0::1]:80/", "http://[::1]/"),
    ("https://example.com./", "https://example.com./"),
    ("https://example.com/a/./b/../c//d/", "https://example.com/a/c//d/"),
    ("https://example.com/a", "https://example.com/a"),
    ("https://example.com/?", "https://example.com/"),
    ("https://example.com/?&&", "https://example.com/"),
    ("https://example.com/?utm_=1&utm_x", "https://example.com/"),
    ("https://example.com/?b=2&a=1&b=1&a=", "https://example.com/?a=&a=1&b=1&b=2"),
    ("https://example.com/?flag&=v&=", "https://example.com/?=&=v&flag="),
    ("https://example.com/?a=b=c&d=%3D", "https://example.com/?a=b%3Dc&d=%3D"),
    ("https://example.com/?q=a+b%20c%2Bd", "https://example.com/?q=a+b+c%2Bd"),
    ("https://example.com/?q=%ff%E7%9F&r=%zz", "https://example.com/?q=%EF%BF%BD%EF%BF%BD&r=%25zz"),
    ("https://example.com/?q=~*-._'!()", "https://example.com/?q=%7E*-._%27%21%28%29"),
    ("https://example.com/?q=a;b=c", "https://example.com/?q=a%3Bb%3Dc"),
    # Names are compared once they are decoded, by case.
    ("https://example.com/?utm%5Fsource=1&%66bclid=2&UTM_source=3", "https://example.com/?UTM_source=3"),
    ("https://example.com/?Ref=1&refs=2&sources=3&source=4", "https://example.com/?Ref=1&refs=2&sources=3"),
    # By code points, as bytes of UTF-8 are sorted: not by UTF-16.
    ("https://example.com/?\U00010000=1&\uffee=2", "https://example.com/?%EF%BF%AE=2&%F0%90%80%80=1"),
)


@pytest.mark.parametrize(
    ("url", "canonical"), [*GOOGLE, *ZHIHU, *GITHUB, *BILIBILI, *WEIBO, *WIKIPEDIA, *PARTS], ids=lambda text: text[:60]
)
def test_an_address_has_the_form_that_the_system_gives_it(url: str, canonical: str) -> None:
    assert canonical_url(url) == canonical
    assert canonical_url(canonical) == canonical


NO_PAGES = (
    *("", "example.com", "/a?b=1", "ftp://example.com/", "mailto:a@example.com", "file:///etc/passwd", "javascript:x"),
    *("http://", "https://?q=1", "http://exa mple.com", "http://1.2.3.256/", "http://[::1", "http://a:99999/"),
    *("https://example.com/\ud800", "\udfff", "\0"),
)


@pytest.mark.parametrize("text", NO_PAGES)
def test_what_is_no_address_of_a_page_has_no_form(text: str) -> None:
    assert canonical_url(text) is None
    assert likely_page_key(text) is None


MEET = (
    ("https://example.com/x?b=2&a=1&utm_source=mail", "HTTPS://EXAMPLE.COM:443/x?a=1&b=2#top"),
    ("https://www.zhihu.com/question/1?utm_oi=5", "https://www.zhihu.com/question/1?utm_psn=9"),
    ("https://zh.wikipedia.org/wiki/知识库", "https://zh.wikipedia.org/wiki/%E7%9F%A5%E8%AF%86%E5%BA%93"),
    ("https://example.com/?q=知识", "https://example.com/?q=%e7%9f%a5%e8%af%86"),
    ("https://github.com/o/r#readme", "https://github.com/o/r#license"),
    # The rule takes more for one than it should: `ref` may be a branch, and what is behind # another page.
    ("https://api.github.com/repos/o/r/readme?ref=main", "https://api.github.com/repos/o/r/readme?ref=dev"),
    ("https://example.com/#/page/1", "https://example.com/#/page/2"),
)
#: Pages, or addresses of one that the system tells apart.
APART = (
    ("https://www.google.com/search?q=a", "https://www.google.com/search?q=b"),
    ("https://www.google.com/search?q=a", "https://www.google.com/search?q=a&start=10"),
    ("https://www.google.com/search?q=c++", "https://www.google.com/search?q=c%2B%2B"),
    ("https://www.zhihu.com/question/1/answer/2", "https://www.zhihu.com/question/1/answer/3"),
    ("https://github.com/Owner/repo", "https://github.com/owner/repo"),
    ("https://github.com/o/r/issues?q=is%3Aopen", "https://github.com/o/r/issues?q=is%3Aclosed"),
    ("https://www.bilibili.com/video/BV1xx411c7mD?p=1", "https://www.bilibili.com/video/BV1xx411c7mD?p=2"),
    ("https://m.weibo.cn/status/4900", "https://m.weibo.cn/status/4901"),
    ("https://en.wikipedia.org/wiki/RAG", "https://de.wikipedia.org/wiki/RAG"),
    ("https://en.wikipedia.org/w/index.php?title=A&oldid=1", "https://en.wikipedia.org/w/index.php?title=A&oldid=2"),
    ("http://example.com/", "https://example.com/"),
    ("https://example.com/a", "https://example.com/a/"),
)
#: Addresses of one page that only the stricter key brings together.
LIKELY_TWINS = (
    (
        f"https://www.bilibili.com/video/BV1xx411c7mD?vd_source={VD}&spm_id_from=333.999.0.0",
        "https://www.bilibili.com/video/BV1xx411c7mD",
    ),
    (
        (
            "https://www.bilibili.com/video/BV19w411t7vD/?buvid=XX7&from_spmid=default-value&is_story_h5=false&plat_id=116"
            "&mid=Xr0%3D%3D&share_from=ugc&share_medium=android&share_plat=android&share_session_id=2f9e186f&share_tag=s_i"
            "&share_source=WEIXIN&spmid=united.player&timestamp=1720580374&unique_k=OqWsKIV&up_id=19319172"
        ),
        "https://www.bilibili.com/video/BV19w411t7vD/",
    ),
    (
        "https://www.google.com/search?q=rag&sca_esv=1&ei=2&ved=3&gs_lp=4&sxsrf=5&sclient=gws-wiz&oq=ra",
        "https://www.google.com/search?q=rag&sourceid=chrome&ie=UTF-8&aqs=chrome..69i57",
    ),
    ("https://www.google.co.uk/search?q=rag&ved=3", "https://www.google.co.uk/search?q=rag"),
    ("https://www.zhihu.com/question/1/answer/2?share_code=5hXa", "https://www.zhihu.com/question/1/answer/2"),
    ("https://github.com/o/r/pull/1?notification_referrer_id=NT_x", "https://github.com/o/r/pull/1"),
    ("https://weibo.com/1642634100/Ab12?refer_flag=1001030103_", "https://weibo.com/1642634100/Ab12"),
    ("https://m.weibo.cn/status/4900?wm=9006&featurecode=1", "https://m.weibo.cn/status/4900"),
    ("https://en.wikipedia.org/wiki/RAG?wprov=sfla1", "https://en.wikipedia.org/wiki/RAG"),
    ("https://en.m.wikipedia.org/wiki/RAG?wprov=sfla1", "https://en.m.wikipedia.org/wiki/RAG"),
    ("https://zh.wikipedia.org/wiki/%e7%9f%a5", "https://zh.wikipedia.org/wiki/知"),
)
#: What is a session's on one site is a page's on another, or on another page.
NO_TWINS = (
    ("https://example.com/?vd_source=1", "https://example.com/?vd_source=2"),
    ("https://notbilibili.com/video/1?vd_source=1", "https://notbilibili.com/video/1?vd_source=2"),
    ("https://bilibili.com.example/video/1?vd_source=1", "https://bilibili.com.example/video/1?vd_source=2"),
    ("https://www.google.com/maps?ved=1", "https://www.google.com/maps?ved=2"),
    ("https://video.weibo.com/show?fid=1034:1", "https://video.weibo.com/show?fid=1034:2"),
    ("https://www.zhihu.com/search?type=content&q=1", "https://www.zhihu.com/search?type=people&q=1"),
)


@pytest.mark.parametrize(("one", "other"), MEET)
def test_addresses_of_one_page_meet(one: str, other: str) -> None:
    assert canonical_url(one) == canonical_url(other) is not None
    assert likely_page_key(one) == likely_page_key(other)


@pytest.mark.parametrize(("one", "other"), [*APART, *NO_TWINS])
def test_pages_that_differ_do_not_meet(one: str, other: str) -> None:
    assert canonical_url(one) != canonical_url(other)
    assert likely_page_key(one) != likely_page_key(other)


@pytest.mark.parametrize(("one", "other"), LIKELY_TWINS)
def test_likely_twins_have_another_id_and_the_same_key(one: str, other: str) -> None:
    assert canonical_url(one) != canonical_url(other)
    assert likely_page_key(one) == likely_page_key(other) is not None


# --- laws ------------------------------------------------------------------------------------------------------------

CHARACTERS = st.characters(exclude_categories=())  # halves of surrogates, too
NAMES = st.text(st.characters(codec="utf-8"), max_size=6)
KEPT = NAMES.filter(lambda name: name not in TRACKERS and not name.startswith(TRACKER_PREFIX))
PAIRS = st.tuples(KEPT, NAMES)
TRACKER_NAMES = st.one_of(st.sampled_from(sorted(TRACKERS)), NAMES.map(TRACKER_PREFIX.__add__))
TEXTS = st.one_of(
    st.text(CHARACTERS, max_size=40),
    st.builds(
        "{}://{}/{}?{}#{}".format, st.sampled_from(["http", "HTTPS", "ftp"]), *[st.text(CHARACTERS, max_size=12)] * 4
    ),
    st.text("htps:/?#[]@!$&'()*+,;=%.\\ \t0aAü中\u3002\xad", max_size=30).map("https:".__add__),
    st.text("?&=+%aF_utm;", max_size=30).map("https://example.com/?".__add__),
)


@QUICK
@given(TEXTS)
@example("https://example.com/%")
@example("https://xn--/")
def test_a_canonical_form_is_its_own(text: str) -> None:
    canonical = canonical_url(text)
    twin = likely_page_key(text)
    assert (canonical is None) == (twin is None)
    if canonical is not None and twin is not None:
        assert canonical_url(canonical) == canonical
        assert likely_page_key(canonical) == likely_page_key(twin) == twin
        canonical.encode("ascii")
        assert "#" not in canonical


@QUICK
@given(st.data(), st.lists(PAIRS, max_size=6), st.lists(st.tuples(TRACKER_NAMES, NAMES), max_size=4))
def test_neither_order_nor_trackers_tell_pages_apart(
    data: st.DataObject, pairs: list[tuple[str, str]], trackers: list[tuple[str, str]]
) -> None:
    plain = canonical_url("https://example.com/x?" + urlencode(pairs))
    mixed = data.draw(st.permutations([*pairs, *trackers]))
    assert canonical_url("https://example.com/x?" + urlencode(mixed)) == plain
    assert plain is not None
    assert parse_qsl(urlsplit(plain).query, keep_blank_values=True) == sorted(pairs)
