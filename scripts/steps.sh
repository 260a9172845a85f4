# Sourced by .ci/run and scripts/test_all.sh: runs named steps, goes on after a failed one, and ends with each step's result,
# its time and the processors' time (which says more on a machine that does other things, too).
names=() results=() failed=0

# Sets cpu_s to the seconds that finished children of this shell have computed. (In $(...) `times` would speak of the subshell.)
count_cpu() {
  local file
  file=$(mktemp)
  times >"$file"
  cpu_s=$(awk 'NR == 2 { split($1, u, /[ms]/); split($2, s, /[ms]/); printf "%d", u[1] * 60 + u[2] + s[1] * 60 + s[2] }' "$file")
  rm -f "$file"
}

# step NAME COMMAND...
step() {
  local name=$1 start=$SECONDS result=passed spent before cpu_s
  count_cpu
  before=$cpu_s
  shift
  echo
  echo "==== $name: $*"
  "$@" || { result=FAILED && failed=1; }
  count_cpu
  spent="$((SECONDS - start)) s, $((cpu_s - before)) s of CPU"
  names+=("$name") results+=("$result in $spent")
  echo "==== $name: $result in $spent"
}

report_steps() {
  echo
  echo "==== Steps"
  for i in "${!names[@]}"; do
    printf '  %-20s %s\n' "${names[$i]}" "${results[$i]}"
  done
  echo "  total                $SECONDS s"
}
