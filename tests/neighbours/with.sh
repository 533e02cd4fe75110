# What the scripts share: `ours` is the connector; the others install packages once, in $CACHE, and run a program, which
# comes on standard input, with them.
set -euo pipefail

ours() { "$PYTHON" -m tests.neighbours.ours "$NATS_URL" "$@"; }
refused() { # the error that a row cannot be written with
    echo "$1" | { ours write "${@:2}" 2>&1 || true; } | grep -o '\[NATS_.*' | tail -1
}
say() { echo "# $*"; }
place() { # what its name depends on: the same packages have the same folder
    local folder
    folder=$CACHE/$1-$(printf '%s\n' "${@:2}" | sha256sum | cut -c1-12)
    mkdir -p "$folder" && echo "$folder"
}
installed() { # runs a command in a folder, once; what it prints is shown if it fails
    local folder=$1
    shift
    [ -e "$folder/.installed" ] && return
    (cd "$folder" && "$@" >.log 2>&1) || { tail -20 "$folder/.log" >&2; exit 1; }
    touch "$folder/.installed"
}
node_with() {
    local folder; folder=$(place node "$@")
    [ -e "$folder/package.json" ] || echo '{"type": "module"}' >"$folder/package.json"
    installed "$folder" npm install --silent --no-audit --no-fund "$@"
    local program; program=$(mktemp "$folder/XXXXXX.mjs")
    cat >"$program"
    (cd "$folder" && timeout 120 node "$program") || { rm "$program"; exit 1; }
    rm "$program"
}
python_with() {
    local folder; folder=$(place python "$@")
    installed "$folder" bash -c '"$0" -m venv venv && venv/bin/pip -q --disable-pip-version-check install "$@"' \
        python3 "$@"
    timeout 120 "$folder/venv/bin/python" -
}
go_with() {
    local source folder; source=$(cat)
    folder=$(place go "$@" "$source")
    echo "$source" >"$folder/main.go"
    printf 'module x\n\ngo 1.26.0\n' >"$folder/go.mod"
    printf 'require %s\n' "$@" >>"$folder/go.mod"
    installed "$folder" bash -c 'GOFLAGS=-mod=mod go mod tidy && go build -p 2 -o program .'
    timeout 120 "$folder/program"
}
rust_with() {
    local source folder; source=$(cat)
    folder=$(place rust "$@" "$source")
    mkdir -p "$folder/src" && echo "$source" >"$folder/src/main.rs"
    { printf '[package]\nname = "program"\nversion = "0.1.0"\nedition = "2021"\n[profile.dev]\ndebug = 0\n'
      printf '[dependencies]\n'; printf '%s\n' "$@"; } >"$folder/Cargo.toml"
    CARGO_TARGET_DIR=$CACHE/rust-target installed "$folder" bash -c \
        'cargo build && cp "$CARGO_TARGET_DIR/debug/program" program' # the next program is built into the same place
    timeout 120 "$folder/program"
}
java_with() {
    local folder; folder=$(place java "$@")
    { echo '<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies>'
      for each; do
          IFS=: read -r group artifact version <<<"$each"
          echo "<dependency><groupId>$group</groupId><artifactId>$artifact</artifactId><version>$version</version></dependency>"
      done
      echo '</dependencies></project>'; } >"$folder/pom.xml"
    installed "$folder" mvn -q -B dependency:copy-dependencies -DoutputDirectory=jars
    cat >"$folder/Program.java"
    timeout 120 java -cp "$folder/jars/*" "$folder/Program.java"
}
