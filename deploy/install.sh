#!/bin/sh
# Installs an archive of Anneal on machines without Rust. The script fetches the archive, verifies its digest and signature, and
# takes the program `anneal` out of it. This program then checks everything again and installs the archive: `anneal self install`.
#
# Exit codes: 0 done, 1 failed, 2 wrong usage, 69 this machine does not meet the build's requirements, 75 try again, 130 stopped.

set -eu
LC_ALL=C
export LC_ALL
umask 022

usage() {
    cat <<'END'
Installs Anneal from an archive.

  sh install.sh --from FILE|URL [--prefix DIR]    install and make current
  sh install.sh --rollback [--prefix DIR]         return to the previous version
  sh install.sh --uninstall [--all] [--prefix DIR]
                                                  remove the current version, or all versions

  --prefix DIR     folder to install to [default: /usr/local for root, else ~/.local]
  --sha256 HEX     expected SHA-256 of the archive, instead of the checksum in FILE.sha256
  --no-check       install without a checksum; corruption and tampering are not detected
  --key FILE|KEY   minisign public key that must verify the archive's signature (FILE.minisig)
                   [default: $ANNEAL_MINISIGN_KEY, else PREFIX/etc/anneal/minisign.pub if it exists]
END
}

# Prints lines to stderr without the control characters of file names. If the reader has closed the pipe, only the subshell ends.
tell() { (printf '%s\n' "$@" | tr '\001-\010\013-\037\177' '?' >&2) || :; }

fail() { # CODE MESSAGE [HINT]
    tell "error: $2" ${3:+"hint: $3"}
    exit "$1"
}

has() { command -v "$1" >/dev/null 2>&1; }

largest=2147483648 # maximum number of bytes of an archive, and of the program in it, as in the crate `install`
most_small=65536   # maximum number of bytes of a checksum file or signature
newline='
'

# --- arguments -----------------------------------------------------------------------------------------------------

do='' from='' prefix='' sum='' check=yes key="${ANNEAL_MINISIGN_KEY:-}" all=''
while [ $# -gt 0 ]; do
    case $1 in
    --from | --prefix | --sha256 | --key)
        # An empty value, for example from an unset variable, would skip the check of the key or checksum.
        if [ $# -lt 2 ] || [ -z "$2" ]; then fail 2 "$1 needs a value"; fi
        case $1 in
        --from) from=$2 ;;
        --prefix) prefix=$2 ;;
        --sha256) sum=$2 ;;
        --key) key=$2 ;;
        esac
        shift
        ;;
    --no-check) check=no ;;
    --rollback | --uninstall)
        [ -z "$do" ] || fail 2 "--$do cannot be used with $1"
        do=${1#--}
        ;;
    --all) all=--all ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) fail 2 "unknown argument $1" 'sh install.sh --help lists the arguments' ;;
    esac
    shift
done
[ -z "$do" ] || [ -z "$from" ] || fail 2 "--$do cannot be used with --from"
[ -n "$do$from" ] || fail 2 'no archive specified' 'specify an archive with --from; sh install.sh --help lists the arguments'
[ -z "$all" ] || [ "$do" = uninstall ] || fail 2 '--all can only be used with --uninstall'
[ -z "$sum" ] || [ "$check" = yes ] || fail 2 '--no-check cannot be used with --sha256'
[ -z "$sum" ] || printf '%s\n' "$sum" | grep -Eqx '[0-9A-Fa-f]{64}' || fail 2 "--sha256 needs 64 hexadecimal digits, not $sum"
[ -n "$prefix" ] || [ "$(id -u)" != 0 ] || prefix=/usr/local
prefix=${prefix:-${HOME:?is not set; choose a folder with --prefix DIR}/.local}
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
home=$prefix/lib/anneal
case $home in
*"$newline"*) fail 2 "cannot use the prefix $prefix: the path contains a line break" 'choose another folder with --prefix DIR' ;;
esac
[ ${#home} -le 3500 ] ||
    fail 2 "cannot use $home: the path has more than 3500 bytes (${#home} bytes)" 'choose a shorter path with --prefix DIR'

# --- programs that install -----------------------------------------------------------------------------------------

work=''
leave() {
    code=$?
    trap '' INT TERM HUP
    [ -z "$work" ] || rm -rf "$work" || :
    exit "$code"
}

# Runs the program $1 without input and, if possible, with a time limit.
try() {
    if has timeout; then set -- timeout 10 "$@"; fi
    "$@" </dev/null
}

# Runs an installer, and exits with its exit code. An installer that is asked to stop cleans up before it exits. It may also get
# the signal itself, so the script passes on SIGHUP, which never counts as a second request.
hand_over() {
    code=0 stopped=''
    "$@" &
    pid=$!
    trap 'stopped=yes; kill -HUP "$pid" 2>/dev/null || :' INT TERM HUP
    wait "$pid" || code=$?
    while [ -n "$stopped" ]; do # the signal ended `wait`
        stopped='' again=0
        wait "$pid" || again=$?
        [ "$again" = 127 ] || code=$again
    done
    exit "$code"
}

# Runs `anneal self $@` of the current version, else of the previous version, else of any other version that starts.
run_installed() {
    found=''
    for folder in "$home/current" "$home/previous" "$home"/versions/anneal-*; do
        [ -f "$folder/bin/anneal" ] || continue
        found=yes
        ! try "$folder/bin/anneal" self --help >/dev/null 2>&1 || hand_over "$folder/bin/anneal" self "$@" --prefix "$prefix"
    done
    [ -z "$found" ] || fail 1 "cannot run anneal self $1: no version in $home/versions starts or has this command" \
        'install another archive with --from, then run this command again'
    [ -z "$all" ] || [ ! -d "$home" ] || fail 1 "cannot remove $home: no version is left in it that can remove the rest" \
        'install an archive with --from, then run this command again'
    fail 1 "nothing is installed in $prefix" 'specify the prefix with --prefix DIR'
}

# --- archives ------------------------------------------------------------------------------------------------------

fetch() { # URL FILE MAX-BYTES MAX-SECONDS: downloads URL to FILE; returns 1 if the server has no such file
    case $1 in https:*) protocols='=https' ;; *) protocols='=http,https' ;; esac
    code=0
    if has curl; then
        # Older versions of curl ignore --max-filesize if the response has no length, so ulimit also applies.
        status=$(ulimit -f $(($3 / 512)) 2>/dev/null || :
            curl -g -sSL --proto "$protocols" --proto-redir "$protocols" --max-redirs 5 --max-filesize "$3" \
            --connect-timeout 30 --speed-limit 1024 --speed-time 30 --max-time "$4" -o "$2" -w '%{http_code}' "$1") || code=$?
        case $code in
        0) ;;
        23) fail 1 "cannot write to $work" 'check that the disk is not full, or set TMPDIR to another folder' ;;
        63 | 153) fail 1 "cannot download $1: it is larger than $3 bytes" ;; # 153: SIGXFSZ
        *) fail 75 "cannot download $1" 'check the network' ;;
        esac
    elif has wget; then
        # wget cannot restrict redirects to https, so it must not follow redirects.
        limit=''
        [ "$4" = 0 ] || ! has timeout || limit="timeout $4"
        # shellcheck disable=SC2086 # two words or none
        (
            ulimit -f $(($3 / 512)) 2>/dev/null || :
            $limit wget -S -nv --max-redirect=0 -T 30 -t 1 -o "$work/answer" -O "$2" "$1"
        ) || code=$?
        # wget's exit code does not distinguish 404 from 403, so the status is read from the response.
        status=$(sed -n 's,^ *HTTP/[0-9.]* \([0-9][0-9][0-9]\).*,\1,p' "$work/answer" | tail -n 1)
        case $code:$status in
        0:* | *:[45]??) ;;
        *:3??) fail 1 "cannot download $1: the server redirects it, and wget cannot restrict redirects to https" \
            'install curl, or pass the redirect target to --from' ;;
        *) fail 75 "cannot download $1: $(tail -n 1 "$work/answer")" 'check the network' ;;
        esac
    else
        fail 1 "cannot download $1: curl and wget are missing" \
            'install curl or wget, or download the archive and its .sha256 file yourself, and pass the archive with --from FILE'
    fi
    case $status in
    200) ;;
    404 | 410) rm -f "$2" && return 1 ;;
    429 | 5??) fail 75 "cannot download $1: the server answers with status $status" 'try again later' ;;
    *) fail 1 "cannot download $1: the server answers with status $status" ;;
    esac
}

take() { # SUFFIX MAX-BYTES MAX-SECONDS: copies $from with this suffix to the work folder; returns 1 if it does not exist
    case $from in
    http://* | https://*) fetch "$from$1" "$archive$1" "$2" "$3" && return 0 || return 1 ;;
    esac
    [ -f "$from$1" ] || return 1
    [ "$(wc -c <"$from$1")" -le "$2" ] || fail 1 "cannot read $from$1: it is larger than $2 bytes"
    cp -- "$from$1" "$archive$1" || fail 1 "cannot copy $from$1 to $work" \
        'check that the file is readable and that the disk is not full, or set TMPDIR to another folder'
}

find_key() { # sets $key to the key in the prefix, if there is one; fails if the prefix cannot be searched for a key
    for folder in "$prefix/etc" "$prefix/etc/anneal"; do
        if { [ -e "$folder" ] || [ -L "$folder" ]; } && { [ ! -d "$folder" ] || [ ! -x "$folder" ]; }; then
            fail 1 "cannot determine whether there is a minisign key: $folder is not a readable folder"
        fi
    done
    kept=$prefix/etc/anneal/minisign.pub
    [ -e "$kept" ] || [ -L "$kept" ] || return 0
    [ -f "$kept" ] || fail 2 "cannot use the key in $kept: it is not a minisign public key"
    key=$kept
}

find_sum() { # sets $sum to the expected digest, unless the user has given it: the digest in the checksum file
    [ -z "$sum" ] || return 0
    if take .sha256 $most_small 60; then
        # The file may list several archives, and may mark names with `*`.
        sum=$(tr -d '\r' <"$archive.sha256" | sed 's/ [*]/ /' | awk -v "file=$file" 'NF == 2 && $2 == file { print $1; exit }')
        [ -n "$sum" ] || fail 1 "cannot check $file: $from.sha256 has no checksum for this file"
    elif [ "$check" = yes ]; then
        fail 1 "cannot check the archive: $from.sha256 does not exist" \
            'download that file too, or specify the checksum with --sha256 HEX; --no-check installs without a check'
    else
        tell "warning: installing $from without verifying its checksum (--no-check), so corruption or tampering will not be detected"
    fi
}

check_archive() { # checks the archive against $sum, and against its signature if there is a key
    found=$(sha256sum <"$archive" | cut -c 1-64)
    sum=$(printf '%s' "${sum:-$found}" | tr A-F a-f)
    [ "$found" = "$sum" ] ||
        fail 1 "checksum mismatch: the SHA-256 of $file is $found instead of $sum" 'download the archive again'
    [ -n "$key" ] || return 0
    [ -f "$archive.minisig" ] ||
        fail 1 "cannot install $from: a minisign key is configured, but the archive has no signature file $from.minisig"
    has minisign || fail 1 "cannot check the signature of $from: minisign is missing" 'install minisign, or remove the key'
    if [ -f "$key" ]; then flag=-p; else flag=-P; fi
    minisign -V -q -m "$archive" -x "$archive.minisig" "$flag" "$key" >&2 ||
        fail 1 "signature mismatch: $from.minisig is not a valid signature of this archive for the configured key" \
            'do not install this archive'
}

take_program() { # writes the program in the archive to $program, which is for this machine and runs
    case $file in *.gz) tool=gzip other=.tar.zst ;; *) tool=zstd other=.tar.gz ;; esac
    has $tool || fail 1 "cannot unpack $from: $tool is missing" "install $tool, or use the $other archive"
    # tar itself writes nothing to the disk, so links and paths in the archive have no effect.
    if ! (
        ulimit -f $((largest / 512)) 2>/dev/null || :
        $tool -dc <"$archive" | tar -xOf - "$name/bin/anneal" >"$program"
    ) 2>"$work/said" || [ ! -s "$program" ]; then
        fail 1 "cannot unpack bin/anneal from $from: $(sed -n 1p "$work/said")" "copy the archive again, and check that the disk of ${TMPDIR:-/tmp} is not full"
    fi
    case $(od -An -tx1 -N20 "$program" | tr -d ' \n') in
    7f454c460201*3e00) built=x86_64 ;;
    7f454c460201*b700) built=aarch64 ;;
    7f454c46*) built='another machine' ;;
    *) fail 1 'archive refused: bin/anneal is not a program for Linux' ;;
    esac
    here=$(uname -m | sed 's/^arm64$/aarch64/')
    [ "$built" = "$here" ] ||
        fail 69 "the archive is for $built, but this machine is $here" "use the archive with $here in its name"
    chmod 700 "$program"
    code=0
    said=$(try "$program" self --help 2>&1) || code=$?
    case $code in
    0) ;;
    2) fail 1 "cannot install $from: this version has no command \`anneal self\`" 'use the install.sh of that version' ;;
    69) fail 69 "$said" ;;
    126) fail 1 "cannot run bin/anneal of the archive: $said" "if $work is mounted with noexec, set TMPDIR to another folder" ;;
    *) fail 1 "bin/anneal in the archive failed (exit code $code): $said" ;;
    esac
}

install() {
    file=${from##*/}
    name=''
    case $file in
    *[!A-Za-z0-9._+-]*) ;;
    anneal-?*.tar.zst | anneal-?*.tar.gz) name=${file%.tar.*} ;;
    esac
    [ -n "$name" ] ||
        fail 2 "$from is not an archive of Anneal" 'archives are called anneal-VERSION-TARGET-PROFILE.tar.zst or .tar.gz'
    [ -n "$key" ] || find_key
    case $from in
    https://*) ;;
    # The user's checksum or key did not come over this connection.
    http://*) [ -n "$sum$key" ] || tell "warning: $from is not encrypted, so an attacker can replace the archive and its checksum" \
        'hint: use https, a checksum from another source (--sha256) or a minisign key' ;;
    *) [ -f "$from" ] || fail 1 "cannot find the archive $from" ;;
    esac
    work=$(mktemp -d "${TMPDIR:-/tmp}/anneal-install.XXXXXX") ||
        fail 1 'cannot create a temporary folder' 'set TMPDIR to a writable folder'
    archive=$work/$file program=$work/anneal
    find_sum
    [ -z "$key" ] || take .minisig $most_small 60 || :
    # The program comes from exactly the content that was checked, because this copy is private.
    take '' $largest 0 || fail 1 "cannot find $from"
    check_archive
    take_program
    hand_over "$program" self install --from "$archive" --prefix "$prefix" --sha256 "$sum" ${key:+--key "$key"}
}

for tool in awk chmod cut grep mktemp od rm sed sha256sum tail tar tr uname wc; do
    has "$tool" || fail 1 "$tool is missing" "install the package that contains $tool, such as coreutils or tar"
done
trap leave EXIT
trap 'exit 130' INT TERM HUP
case $do in
'') install ;;
*) run_installed "$do" ${all:+"$all"} ;;
esac
