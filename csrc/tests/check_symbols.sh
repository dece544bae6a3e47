#!/bin/sh
# Three promises about the engine, checked on the object code:
#   1. a symbol of NAME.c that other files see starts with NAME_, or with clusim_ if it is in the header;
#   2. there is no mutable global state: nothing in .data or .bss.
#   3. no file calls a file that calls it, directly or through others.
# usage: check_symbols.sh libclusim_core.a
set -eu
bad=$(nm -A --defined-only "$1" | awk '
    { n = split($1, path, ":"); file = path[n - 1]; sub(/\.c\.o$/, "", file); sub(/.*\//, "", file)
      if (file ~ /^model/) prefix = "model_"
      else if (file ~ /^sim/) prefix = "sim_"
      else prefix = file "_" }
    $2 ~ /^[TRVW]$/ && index($3, prefix) != 1 && index($3, "clusim_") != 1 { print file ".c exports " $3 }
    $2 ~ /^[DdBbCGgSs]$/ { print file ".c has mutable global " $3 }')
[ -z "$bad" ] || { echo "$bad"; exit 1; }
loop=$(nm -A "$1" | awk '
    { n = split($1, path, ":"); file = path[n - 1]; sub(/.*\//, "", file); type = $(NF - 1); name = $NF
      if (type ~ /^[TRVW]$/) home[name] = file
      else if (type == "U") { uses[++count] = name; user[count] = file } }
    END { for (i = 1; i <= count; i++)
              if (uses[i] in home && home[uses[i]] != user[i]) print user[i], home[uses[i]] }' \
    | sort -u | tsort 2>&1 >/dev/null) || true
[ -z "$loop" ] || { echo "files call each other in a circle:"; echo "$loop"; exit 1; }
