"""Makes docs/api.md from the comments of the public contract, and holds the page against them.

    api_page_test.py             compare the page with what the contract gives
    api_page_test.py --write     write the page
    api_page_test.py --self-test show that planted faults are found
"""

import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = "docs/api.md"
# The packages that clients use; what workers and the coordinator say to each other is not among them.
PACKAGES = ["shardmesh/v1", "shardmesh/compat/v1"]
COLUMNS = 100

COMMENT = re.compile(r"^\s*// ?(.*)$")
OPENING = re.compile(r"^\s*(service|message|enum|oneof) (\w+) \{(\})?$")
METHOD = re.compile(r"^\s*rpc (\w+)\((.*?)\) returns \((.*?)\)(;| \{(\})?)$")
FIELD = re.compile(r"^\s*((?:(?:optional|repeated) )?[\w.]+|map<[^>]*>) (\w+) = (\d+)(?: \[.*\])?;$")
VALUE = re.compile(r"^\s*([A-Z]\w*) = (-?\d+)(?: \[.*\])?;$")
HEAD = """# The API, call by call

All calls and messages of the public packages, with the comments of their protos.
`tests/api_page_test.py --write` makes this page; a test fails where it is older than the protos.
Reasons of errors: [errors.md](errors.md). Words: [glossary.md](glossary.md).

The full name of a method is `PACKAGE.SERVICE/METHOD`, such as
`shardmesh.v1.ResolveService/BatchResolveSpecs`. Coordinator and workers have gRPC's reflection,
hence a call needs no protos:

```
grpcurl -plaintext -d '{"requests": [{"axes": [{"name": "__BATCH__"}, {"name": "__HEAD__"}]}]}' \\
    127.0.0.1:7070 shardmesh.v1.ResolveService/BatchResolveSpecs
```

With TLS, `-cacert`, `-cert` and `-key` take the place of `-plaintext`.

## Services

"""


class Node:
    """A service, method, message, enum, oneof, field or value of a proto, or the file itself."""

    def __init__(self, kind, name, text, comment):
        self.kind, self.name, self.text, self.comment = kind, name, text, comment
        self.children = []


def statements(lines):
    """The lines of a proto, where one that goes on is joined with the next ones."""
    joined = ""
    for line in lines:
        if joined:
            joined += " " + line.strip()
        elif not line.strip() or COMMENT.match(line):
            yield line
            continue
        else:
            joined = line.rstrip()
        if joined.endswith((";", "{", "}")):
            yield re.sub(r"\( ", "(", joined)
            joined = ""


def parse(text):
    """The file of a proto's text. Raises ValueError at a line that is none of those that a proto of ours has."""
    root = Node("file", "", "", [])
    stack, comment, reserved = [root], [], 0
    for line in statements(text.splitlines()):
        if (found := COMMENT.match(line)):
            comment.append(found.group(1))
            continue
        top, taken, comment = stack[-1], comment, []
        if not line.strip():
            continue
        if line.startswith(("syntax", "package", "import", "option")):
            if line.startswith("syntax"):
                root.comment = taken
            continue
        if (found := OPENING.match(line)):
            node = Node(found.group(1), found.group(2), "", taken)
            top.children.append(node)
            if not found.group(3):
                stack.append(node)
        elif (found := METHOD.match(line)):
            node = Node("method", found.group(1), f"{found.group(1)}({found.group(2)}) returns ({found.group(3)})", taken)
            top.children.append(node)
            if found.group(4) == " {":
                stack.append(node)
        elif re.match(r"^\s*(reserved|option) ", line):
            reserved += 1
        elif (found := FIELD.match(line)):
            top.children.append(Node("field", found.group(2), f"{found.group(1)} {found.group(2)} = {found.group(3)}", taken))
        elif (found := VALUE.match(line)):
            top.children.append(Node("value", found.group(1), f"{found.group(1)} = {found.group(2)}", taken))
        elif line.strip() == "}":
            stack.pop()
        else:
            raise ValueError(f"cannot read: {line}")
    if len(stack) != 1:
        raise ValueError(f"{stack[-1].name} does not end")
    return root


def prose(comment):
    return [escape(line) for line in comment] + [""] if comment else []


def escape(line):
    """The line, of which nothing is taken for HTML."""
    return re.sub(r"<(?=[A-Za-z/])", "&lt;", line)


def bullet(text, depth):
    indent = "  " * depth
    return textwrap.wrap(
        text, COLUMNS, initial_indent=f"{indent}* ", subsequent_indent=f"{indent}  ",
        break_long_words=False, break_on_hyphens=False)


def item(node, depth):
    """A field or value as an item of a list; the items of its comment and the fields of a oneof are below it."""
    label = f"one of `{node.name}`" if node.kind == "oneof" else f"`{node.text}`"
    texts, after = [f"{label}:"], []
    for line in node.comment:
        if line.startswith("* "):
            texts.append(line[2:].strip())
        elif line.strip() and len(texts) > 1 and not line.startswith(" "):
            after.append(line.strip())
        elif line.strip():
            texts[-1] += " " + line.strip()
    lines = bullet(escape(texts[0]), depth)
    for text in texts[1:]:
        lines += bullet(escape(text), depth + 1)
    if after:
        indent = "  " * (depth + 1)
        lines += ["", *textwrap.wrap(escape(" ".join(after)), COLUMNS, initial_indent=indent, subsequent_indent=indent,
                                     break_long_words=False, break_on_hyphens=False)]
    for child in node.children:
        lines += item(child, depth + 1)
    return lines


def block(node, prefix):
    """A message or enum, and those within it, as sections."""
    name = prefix + node.name
    lines = [f"### {node.kind} `{name}`", ""] + prose(node.comment)
    members = [child for child in node.children if child.kind in ("field", "value", "oneof")]
    for child in members:
        lines += item(child, 0)
    if members:
        lines.append("")
    for child in node.children:
        if child.kind in ("message", "enum"):
            lines += block(child, name + ".")
    return lines


def anchor(heading):
    """The address that GitHub gives a heading."""
    return "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def types_of(method, messages):
    """Links to the messages of a method; one that two packages have, or none, stays without."""
    _, request, response = re.fullmatch(METHOD, f"rpc {method.text};").groups()[:3]
    links = []
    for name in (request.removeprefix("stream "), response.removeprefix("stream ")):
        if messages.count(name) == 1:
            links.append(f"[`{name}`]({anchor('message ' + name)})")
    return [", ".join(links), ""] if links else []


def page_of(protos):
    """The page of the protos: texts by path below proto/."""
    lines = HEAD.splitlines()
    roots = {path: parse(text) for path, text in protos.items()}
    messages = [node.name for root in roots.values() for node in root.children if node.kind == "message"]
    for path, root in roots.items():
        package = path.rpartition("/")[0].replace("/", ".")
        for node in root.children:
            if node.kind == "service":
                link = f"[`{package}.{node.name}`]({anchor('service ' + node.name)})"
                lines += bullet(f"{link}: {escape(' '.join(node.comment).partition('. ')[0])}.".replace("..", "."), 0)
    lines.append("")
    for path, root in roots.items():
        lines += [f"## `{path}`", ""] + prose(root.comment)
        for node in root.children:
            if node.kind == "service":
                lines += [f"### service `{node.name}`", ""] + prose(node.comment)
                for method in node.children:
                    lines += [f"#### `{method.text}`", ""] + prose(method.comment) + types_of(method, messages)
        for node in root.children:
            if node.kind in ("message", "enum"):
                lines += block(node, "")
    text = "\n".join(lines)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"


def read_protos():
    found = {}
    for package in PACKAGES:
        folder = ROOT / "proto" / package
        # Services first: a reader comes for the calls.
        for path in sorted(folder.glob("*.proto"), key=lambda p: (not p.stem.endswith("_service"), p.stem)):
            found[f"{package}/{path.name}"] = path.read_text()
    return found


def self_test():
    proto = """// A file.
syntax = "proto3";

package shardmesh.v1;

// A service.
service S {
  // Asks.
  //
  // Errors:
  // * NOT_FOUND: no such x.
  rpc Ask(stream AskRequest) returns (AskResponse);
}

// A question.
message AskRequest {
  // A name, at most <limit>, of:
  // * a tree
  //   of names.
  // * a mesh.
  // It is unique.
  repeated string name = 1;
  // Exactly one.
  oneof kind {
    // A number.
    int64 number = 2;
  }
  reserved 3;
}

// An answer.
message AskResponse {}
"""
    page = page_of({"shardmesh/v1/s.proto": proto})
    for wanted in ["## `shardmesh/v1/s.proto`", "A file.", "#### `Ask(stream AskRequest) returns (AskResponse)`",
                   "* NOT_FOUND: no such x.", "* `repeated string name = 1`: A name, at most &lt;limit>, of:\n  * a tree of names.\n  * a mesh.\n\n  It is unique.\n",
                   "* [`shardmesh.v1.S`](#service-s): A service.", "[`AskRequest`](#message-askrequest), [`AskResponse`](#message-askresponse)",
                   "* one of `kind`: Exactly one.", "  * `int64 number = 2`: A number.", "### message `AskResponse`"]:
        assert wanted in page, (wanted, page)
    assert page_of({"shardmesh/v1/s.proto": proto.replace("A number", "Another")}) != page
    for broken in [proto.replace("oneof kind {", "oneof kind"), proto + "group x\n;\n", proto.replace("message AskResponse {}", "message AskResponse {")]:
        try:
            page_of({"x": broken})
        except ValueError:
            continue
        raise AssertionError(broken)
    print("planted faults are found")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    page = page_of(read_protos())
    if sys.argv[1:] == ["--write"]:
        (ROOT / PAGE).write_text(page)
        return None
    if (ROOT / PAGE).read_text() != page:
        sys.exit(f"{PAGE} is older than the protos; run tests/api_page_test.py --write")
    return None


if __name__ == "__main__":
    main()
