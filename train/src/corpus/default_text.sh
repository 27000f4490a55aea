#!/bin/sh
# Writes default_text.txt: the crates of Cargo.lock that every supported platform compiles, in lock order.
# Cargo does not download platform-specific crates everywhere, so they are left out. Crates that only GPUs need are left
# out too, because generated C declarations would be most of the text.
# Run it from the repository's root after a change of dependencies. Then run `cargo test -p meshgrad-train default_text`,
# which prints the new digest for the first line.
set -eu

here=train/src/corpus
platforms="x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-apple-darwin aarch64-apple-darwin"

common=$(mktemp)
for platform in $platforms; do
    cargo tree --locked --package meshgrad --edges normal,build --target "$platform" --prefix none |
        awk '$1 !~ /^(meshgrad|cudarc$|libloading$)/ { print $1, substr($2, 2) }' | sort -u
done | sort | uniq -c | awk -v all="$(echo "$platforms" | wc -w)" '$1 == all { print $2, $3 }' > "$common"

{
    head -n 1 "$here/default_text.txt"
    tr -d '"' < Cargo.lock |
        awk '/^name = / { name = $3 } /^version = / && name { print name, $3; name = "" }' |
        grep -Fx -f "$common"
} > "$common.new"
mv "$common.new" "$here/default_text.txt"
rm "$common"
