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

# behind FUNCTION: runs a function of steps at the lowest priority while the script goes on. It gets the cores' time that
# the other steps leave: while they install, configure, link and wait for their last test.
behind() {
  behind_folder=$(mktemp -d)
  set -m # a process group of its own, which ends with this script
  (
    renice -n 19 "$BASHPID" >/dev/null
    names=() results=()
    "$1"
    for i in "${!names[@]}"; do
      printf '%s\t%s\n' "${names[$i]}" "${results[$i]}" >>"$behind_folder/steps"
    done
  ) >"$behind_folder/output" 2>&1 &
  behind_pid=$!
  set +m
  trap 'kill -- "-$behind_pid" 2>/dev/null' EXIT
}

# Waits for the steps of `behind`, prints what they said and counts them with the others.
collect_behind() {
  local name result
  wait "$behind_pid" || failed=1
  trap - EXIT
  cat "$behind_folder/output"
  while IFS=$'\t' read -r name result; do
    names+=("$name") results+=("$result")
    if [[ $result == FAILED* ]]; then failed=1; fi
  done <"$behind_folder/steps"
  rm -rf "$behind_folder"
}

report_steps() {
  echo
  echo "==== Steps"
  for i in "${!names[@]}"; do
    printf '  %-20s %s\n' "${names[$i]}" "${results[$i]}"
  done
  echo "  total                $SECONDS s"
}
