#!/bin/sh
# Installs an archive of Anneal on machines without Rust. The script and `cargo xtask install` use one layout, so that each can
# continue the other's work: PREFIX/lib/anneal/versions/NAME, the links PREFIX/lib/anneal/current and previous, and links to
# `current` in PREFIX/bin and PREFIX/share. The script unpacks and checks a version in a work folder; one rename makes it current.
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
  --no-check       install without a checksum; damage and forgery are not detected
  --key FILE|KEY   minisign public key that must verify the archive's signature (FILE.minisig)
                   [default: $ANNEAL_MINISIGN_KEY, else PREFIX/etc/anneal/minisign.pub if it exists]
END
}

fail() { # CODE WORDS...
    code=$1
    shift
    tell "error: $*"
    exit "$code"
}

# File names and the output of other programs must not send escape sequences to the terminal.
plain() { tr '\001-\010\013-\037\177' '?'; }

show() {
    case $1 in
    *[[:cntrl:]]*) printf '%s\n' "$1" | plain ;;
    *) printf '%s\n' "$1" ;;
    esac
}

# Prints in a subshell, which the system may kill if the reader has closed the pipe. The exit code still shows the failure.
tell() { (show "$*" >&2) || :; }

warn() { tell "warning: $*"; }

say() { # reports finished work; a failed write to stdout does not undo the work
    code=0
    (show "$*") 2>/dev/null || code=$?
    # 141 is SIGPIPE: a reader that has closed the pipe is not an error.
    case $code in
    0 | 141) ;;
    *) fail 1 "cannot write to stdout, but this is done: $*" ;;
    esac
}

has() { command -v "$1" >/dev/null 2>&1; }

# Maximum number of entries, and of 512-byte blocks of a file, as in crates/ship/src/unpack.rs.
most_entries=20000
most_blocks=4194304
most_small=65536 # maximum size of a checksum file or signature in bytes, as in crates/ship/src/install/source.rs
# Maximum length of the path PREFIX/lib/anneal, so that the paths of an archive's files fit into PATH_MAX.
most_path=3500
newline='
'

do='' from='' prefix='' sum='' check=yes key="${ANNEAL_MINISIGN_KEY:-}" all=no
while [ $# -gt 0 ]; do
    case $1 in
    --from | --prefix | --sha256 | --key)
        # An empty value may come from an unset variable, and would skip the check of the key or checksum.
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
    --all) all=yes ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) fail 2 "unknown argument $1
hint: sh install.sh --help lists the arguments" ;;
    esac
    shift
done
[ -z "$do" ] || [ -z "$from" ] || fail 2 "--$do cannot be used with --from"
do=${do:-install}
[ "$all" = no ] || [ "$do" = uninstall ] || fail 2 "--all can only be used with --uninstall"
case $sum in
*[!0-9A-Fa-f]*) fail 2 "--sha256 needs 64 hexadecimal digits, not $sum" ;;
*) [ -z "$sum" ] || [ ${#sum} -eq 64 ] || fail 2 "--sha256 needs 64 hexadecimal digits, not $sum" ;;
esac
if [ -z "$prefix" ]; then
    if [ "$(id -u)" = 0 ]; then
        prefix=/usr/local
    else
        prefix=${HOME:?is not set; choose a folder with --prefix DIR}/.local
    fi
fi
case $prefix in
/*) ;;
*) prefix=$PWD/$prefix ;;
esac
# Shell completion adds trailing slashes, which would make the comparison with PATH fail.
while [ "$prefix" != "${prefix%/}" ]; do prefix=${prefix%/}; done
home=$prefix/lib/anneal
versions=$home/versions
# Lists of folders contain one path per line.
case $prefix in
*"$newline"*) fail 2 "cannot install to $prefix: the path contains a line break
hint: choose another folder with --prefix DIR" ;;
esac
[ ${#home} -le $most_path ] || fail 2 "cannot install to $home: the path has ${#home} bytes, more than the maximum of $most_path bytes
hint: choose a shorter path with --prefix DIR"

# --- existing installations ----------------------------------------------------------------------------------------

is_name() { # succeeds if $1 can be the name of a version
    case $1 in
    *[!A-Za-z0-9._+-]* | '') return 1 ;;
    anneal-*) [ ${#1} -le 99 ] ;; # longer names do not fit into a tar header
    *) return 1 ;;
    esac
}

foreign() {
    fail 1 "cannot replace $1: it was not created by Anneal's installer; nothing was changed
hint: move this file away, or choose another folder with --prefix DIR"
}

named_by() { # prints the version that the link $1 names
    if [ -L "$1" ]; then
        target=$(readlink "$1")
        if ! is_name "${target#versions/}" || [ "$target" = "${target#versions/}" ]; then
            foreign "$1"
        fi
        printf '%s\n' "${target#versions/}"
    elif [ -e "$1" ]; then
        foreign "$1"
    fi
}

# Prints the names for which the version in $1 needs links.
wanted() {
    for link in bin/anneal share/bash-completion/completions/anneal share/zsh/site-functions/_anneal \
        share/fish/vendor_completions.d/anneal.fish; do
        [ ! -f "$1/$link" ] || printf '%s\n' "$link"
    done
    pages "$1"
}

pages() { # prints the man pages of Anneal below $1
    for page in "$1"/share/man/man1/anneal.1 "$1"/share/man/man1/anneal-*.1; do
        if [ -e "$page" ] || [ -L "$page" ]; then
            printf 'share/man/man1/%s\n' "${page##*/}"
        fi
    done
}

target_of() { # prints the target of the link at $1 below the prefix, as a relative path, so that users can move the prefix
    folder=${1%/*}
    if [ -d "$prefix/$folder" ]; then
        root=$(cd -P "$prefix" && pwd -P)
        # If the user made the folder a symbolic link (such as ~/.local/bin), a relative path would lead elsewhere.
        if [ "$(cd -P "$prefix/$folder" && pwd -P)" != "${root%/}/$folder" ]; then
            printf '%s/lib/anneal/current/%s\n' "${root%/}" "$1"
            return
        fi
    fi
    up=$(printf '%s' "$1" | sed 's,[^/]*/,../,g; s,[^/]*$,,')
    printf '%slib/anneal/current/%s\n' "$up" "$1"
}

is_ours() { [ -L "$prefix/$1" ] && [ "$(readlink "$prefix/$1")" = "$(target_of "$1")" ]; }

check_links() { # fails if another program's file occupies the path of a link of the version in $1
    wanted "$1" | while read -r link; do
        if { [ -e "$prefix/$link" ] || [ -L "$prefix/$link" ]; } && ! is_ours "$link"; then
            foreign "$prefix/$link"
        fi
    done
}

present() { # prints the existing links of Anneal
    {
        printf '%s\n' bin/anneal share/bash-completion/completions/anneal share/zsh/site-functions/_anneal \
            share/fish/vendor_completions.d/anneal.fish
        pages "$prefix"
    } | while read -r link; do
        ! is_ours "$link" || printf '%s\n' "$link"
    done
}

# --- one installer at a time ---------------------------------------------------------------------------------------

wipe() { # removes $1 and everything below it, regardless of permissions
    chmod -R u+rwX "$1" 2>/dev/null || :
    rm -rf "$1" || :
}

staging='' becomes='' made_links='' placed='' locked='' stopped='' missing=''
leave() {
    code=$?
    trap '' INT TERM HUP
    # Removes new links and a new version that did not become current.
    if [ -n "$becomes" ] && [ "$(readlink "$home/current")" != "versions/$becomes" ]; then
        printf '%s' "$made_links" | while read -r link; do rm -f "$prefix/$link"; done
        [ -z "$placed" ] || wipe "$placed"
    fi
    [ -z "$staging" ] || wipe "$staging"
    # After a refused first installation, nothing is installed, so no later --uninstall would remove the folders.
    if [ -n "$locked" ] && [ ! -L "$home/current" ] && [ ! -L "$home/previous" ] && rmdir "$versions" 2>/dev/null; then
        remove_empty
    fi
    exit "$code"
}

listen() { trap 'exit 130' INT TERM HUP; }

# Ignores signals while links and folders are exchanged, which takes milliseconds. An interruption would leave an inconsistent state.
deafen() { trap '' INT TERM HUP; }

# Records signals after the exchange. The script completes its work, and the message names the current version.
heed() { trap 'stopped=yes' INT TERM HUP; }

lock() {
    trap leave EXIT
    listen
    # A symbolic link would send the text for the lock file to another file.
    [ ! -L "$home/.lock" ] || fail 1 "cannot lock $home/.lock: it is a symbolic link
hint: remove the link"
    (: >>"$home/.lock") 2>/dev/null || {
        unmake
        fail 1 "cannot write to $home
hint: choose a writable folder with --prefix DIR, or install as root"
    }
    if has flock; then
        exec 9>>"$home/.lock"
        if ! flock -n 9; then
            fail 75 "cannot lock $prefix: $(cat "$home/.lock") is running
hint: wait until this process has finished, then run the command again"
        fi
        [ -e "$home/.lock" ] || fail 75 "cannot lock $prefix: another installer has just removed the lock file
hint: run the command again"
    else
        warn "flock is missing, so a second installer would not be detected
hint: install util-linux, or run only one installer"
    fi
    locked=yes
    printf '%s of process %s' "$do" $$ >"$home/.lock"
    for left in "$home"/.staging-* "$home"/.current.* "$home"/.previous.* "$home"/.folders.*; do
        pid=${left##*/.}
        pid=${pid#*[-.]}
        pid=${pid%%[-.]*}
        case $pid in
        '' | *[!0-9]*) ;;
        *) [ -d "/proc/$pid" ] || wipe "$left" ;;
        esac
    done
    # Sets the name first, so that `leave` removes the folder after an interruption at any point.
    staging=$home/.staging-$$-$(random)
    mkdir -m 700 "$staging" || fail 1 "cannot write to $home"
}

random() { # prints eight random hexadecimal digits for a name that other users cannot predict
    od -An -N4 -tx4 /dev/urandom | tr -d ' \n'
}

make_folder() { # creates $1 below the prefix, and lists the created folders, which are removed with the last version
    missing='' folder=$prefix/$1
    while [ -n "$folder" ] && [ ! -d "$folder" ]; do
        missing="$missing$folder
"
        folder=${folder%/*}
    done
    [ -n "$missing" ] || return 0
    mkdir -p "$prefix/$1" || {
        unmake
        fail 1 "cannot create $prefix/$1
hint: choose a writable folder with --prefix DIR, or install as root"
    }
    [ -d "$home" ] || return 0
    # A folder that is not in the list would never be removed.
    beside=$home/.folders.$$-$(random)
    # With noclobber, the shell does not follow an existing link.
    if ! made=$(told_folders) || ! (set -C && printf '%s\n' "$made" | sort -u >"$beside") ||
        ! mv -f "$beside" "$home/folders"; then
        rm -f "$beside"
        unmake
        fail 1 "cannot write $home/folders
hint: check that the disk is not full"
    fi
}

unmake() { # removes the folders $missing, deepest first
    printf '%s' "$missing" | while IFS= read -r folder; do rmdir "$folder" 2>/dev/null || :; done
}

told_folders() { # prints the folders in the list and the folders in $missing
    [ ! -e "$home/folders" ] || cat "$home/folders" || return 1
    printf '%s' "$missing" | while IFS= read -r folder; do
        case $folder in
        "$prefix") printf '.\n' ;;
        "$prefix"/*) printf '%s\n' "${folder#"$prefix"/}" ;;
        */..) ;; # a folder named by `..` existed before
        # An absolute path, because the prefix may get another name or be moved.
        *) (cd -P "$folder" && pwd -P) ;;
        esac
    done
}

remove_folders() { # removes the folders on stdin, deepest first, except folders with other files
    root=$(cd -P "$prefix" 2>/dev/null && pwd -P) || root=''
    awk -F/ '$0 != "" { print ($0 == "." ? 0 : ($0 ~ /^\// ? NF - 10000 : NF)), $0 }' | sort -rn | cut -d' ' -f2- |
        while IFS= read -r folder; do
            case /$folder/ in
            /./) rmdir "$prefix" 2>/dev/null || : ;;
            */../*) ;;
            //*) # above the prefix
                case $root in
                "$folder"/*) rmdir "$folder" 2>/dev/null || : ;;
                esac
                ;;
            *) rmdir "$prefix/$folder" 2>/dev/null || : ;;
            esac
        done
}

remove_empty() { # removes Anneal's remaining files after the last version has been removed
    folders=$(cat "$home/folders" 2>/dev/null || :)
    rm -f "$home/folders" "$home/.lock"
    rmdir "$home" 2>/dev/null || :
    printf '%s\n' "$folders" | remove_folders
}

# --- archives ------------------------------------------------------------------------------------------------------

digest() {
    if has sha256sum; then
        sha256sum <"$1"
    elif has shasum; then
        shasum -a 256 <"$1"
    elif has openssl; then
        openssl dgst -sha256 -r <"$1"
    else
        fail 1 "cannot compute the SHA-256 of $1
hint: install one of sha256sum (coreutils), shasum (perl) or openssl"
    fi | cut -c 1-64
}

fetch() { # URL FILE MAX-BYTES MAX-SECONDS: downloads URL to FILE; returns 1 if the server has no such file
    case $1 in
    https:*) protocols='=https' ;;
    *) protocols='=http,https' ;;
    esac
    if has curl; then
        # Older versions of curl ignore --max-filesize if the response has no length, so ulimit also applies.
        code=0
        status=$(ulimit -f $(($3 / 512)) 2>/dev/null || :
            curl -g -sSL --proto "$protocols" --proto-redir "$protocols" --max-redirs 5 --max-filesize "$3" \
            --connect-timeout 30 --speed-limit 1024 --speed-time 30 --max-time "$4" -o "$2" -w '%{http_code}' "$1") ||
            code=$?
        case $code in
        0) ;;
        # 153: SIGXFSZ
        63 | 153) fail 1 "cannot download $1: it is larger than $3 bytes" ;;
        *) fail 75 "cannot download $1
hint: check the network" ;;
        esac
    elif has wget; then
        # wget cannot restrict redirects to https, so it must not follow redirects.
        code=0
        limit=''
        [ "$4" = 0 ] || ! has timeout || limit="timeout $4"
        # shellcheck disable=SC2086 # two words or none
        (
            ulimit -f $(($3 / 512)) 2>/dev/null || :
            $limit wget -S -nv --max-redirect=0 -T 30 -t 1 -o "$staging/answer" -O "$2" "$1"
        ) || code=$?
        # wget's exit code does not distinguish 404 from 403, so the status is read from the response.
        status=$(sed -n 's,^ *HTTP/[0-9.]* \([0-9][0-9][0-9]\).*,\1,p' "$staging/answer" | tail -n 1)
        case $code:$status in
        0:* | *:[45]??) ;;
        *:3??) fail 1 "cannot download $1: the server redirects it, and wget cannot restrict redirects to https
hint: install curl, or give the address to which the server redirects" ;;
        *)
            plain <"$staging/answer" >&2
            fail 75 "cannot download $1
hint: check the network"
            ;;
        esac
    else
        fail 1 "cannot download $1: curl and wget are missing
hint: install curl or wget, or download the archive and its .sha256 file with another program and give the archive with --from"
    fi
    case $status in
    200) return 0 ;;
    404 | 410)
        rm -f "$2"
        return 1
        ;;
    429 | 5??) fail 75 "cannot download $1: the server answers with status $status
hint: try again later" ;;
    *) fail 1 "cannot download $1: the server answers with status $status" ;;
    esac
}

take() { # copies the URL or file $1 to the file $2; returns 1 if it does not exist
    case $1 in
    http://* | https://*) fetch "$1" "$2" $((most_blocks * 512)) 0 ;;
    *)
        [ -f "$1" ] || return 1
        cp -- "$1" "$2" || fail 1 "cannot copy $1 to $2
hint: check that the file is readable and that the disk is not full"
        ;;
    esac
}

take_small() { # copies like `take`, but only a small file: a checksum file or a signature
    case $1 in
    http://* | https://*) fetch "$1" "$2" $most_small 60 ;;
    *)
        [ -f "$1" ] || return 1
        [ "$(wc -c <"$1")" -le $most_small ] || fail 1 "cannot read $1: it is larger than $most_small bytes"
        take "$1" "$2"
        ;;
    esac
}

told_sum() { # prints the checksum of $2 in the list $1
    cr=$(printf '\r')
    # The last line may have no line break.
    while read -r told file rest || [ -n "$told" ]; do
        file=${file%"$cr"}
        if [ "${file#\*}" = "$2" ] && [ -z "$rest" ]; then
            printf '%s\n' "$told"
            return 0
        fi
    done <"$1"
    fail 1 "cannot check $2: $from.sha256 has no checksum for this file"
}

settle_key() { # uses the given key, else the key in the prefix; fails if the prefix cannot be searched for a key
    [ -z "$key" ] || return 0
    kept=$prefix/etc/anneal/minisign.pub
    for folder in "$prefix/etc" "$prefix/etc/anneal"; do
        if { [ -e "$folder" ] || [ -L "$folder" ]; } && { [ ! -d "$folder" ] || [ ! -x "$folder" ]; }; then
            fail 1 "cannot determine whether there is a minisign key: $folder is not a readable folder"
        fi
    done
    if [ -e "$kept" ] || [ -L "$kept" ]; then
        [ -f "$kept" ] || fail 2 "cannot use the key of $kept: it is not a minisign public key"
        key=$kept
    fi
}

check_archive() { # checks $archive against $archive.sha256 or --sha256, and against $archive.minisig if there is a key
    file=${archive##*/}
    if [ -n "$sum" ]; then
        expected=$sum
    elif [ -f "$archive.sha256" ]; then
        expected=$(told_sum "$archive.sha256" "$file")
    elif [ "$check" = no ]; then
        expected=''
        warn "installing $from without verifying its checksum (--no-check), so corruption or tampering will not be detected"
    else
        fail 1 "cannot check the archive: $from.sha256 does not exist
hint: download that file too, or give the checksum with --sha256 HEX; --no-check installs without a check"
    fi
    if [ -n "$expected" ]; then
        expected=$(printf '%s' "$expected" | tr A-F a-f)
        found=$(digest "$archive")
        [ "$found" = "$expected" ] || fail 1 "checksum mismatch: the SHA-256 of $file is $found instead of $expected
hint: download the archive again"
    fi
    [ -n "$key" ] || return 0
    [ -f "$archive.minisig" ] || fail 1 "cannot install $from: a minisign key is configured, but the archive has no \
signature file $from.minisig"
    has minisign || fail 1 "cannot check the signature of $from: minisign is missing
hint: install minisign, or remove the key"
    if [ -f "$key" ]; then flag=-p; else flag=-P; fi
    minisign -V -q -m "$archive" -x "$archive.minisig" "$flag" "$key" >&2 ||
        fail 1 "signature mismatch: $from.minisig is not a valid signature of this archive for the configured key
hint: do not install this archive"
}

unpack() { # unpacks $archive to $staging/$name
    plain=$staging/plain.tar
    case $archive in
    *.gz)
        has gzip || fail 1 "cannot unpack $from: gzip is missing
hint: install gzip"
        set -- gzip -dc
        ;;
    *)
        has zstd || fail 1 "cannot unpack $from: zstd is missing
hint: install zstd (apt install zstd, dnf install zstd), or use the .tar.gz"
        set -- zstd -q -dc
        ;;
    esac
    # The limit stops a decompression bomb.
    (
        ulimit -f $most_blocks 2>/dev/null || :
        "$@" "$archive" >"$plain"
    ) || fail 1 "cannot unpack $from: it is damaged, too large, or the disk is full"
    rm -f "$archive"
    tar -tf "$plain" >"$staging/names" || fail 1 "cannot unpack $from: it is damaged"
    tar -tvf "$plain" >"$staging/listing" || fail 1 "cannot unpack $from: it is damaged"
    # Refuses content that no archive of Anneal contains, before writing any file.
    [ "$(wc -l <"$staging/names")" -le $most_entries ] || fail 1 "archive refused: it contains more than $most_entries files"
    ! grep -v '^[-d]' "$staging/listing" >&2 || fail 1 "archive refused: it contains an entry that is neither a file nor a folder"
    ! grep -E ' (->|link to) ' "$staging/listing" >&2 || fail 1 "archive refused: it contains a link"
    ! cut -c 1-10 "$staging/listing" | grep -q '[sStT]' || fail 1 "archive refused: it contains files with setuid or setgid"
    ! grep -E '[^ -~]|[\]' "$staging/names" >&2 || fail 1 "archive refused: it contains a name with control characters"
    ! grep -E '(^|/)\.{1,2}(/|$)|^/|//' "$staging/names" >&2 || fail 1 "archive refused: it contains a path that leads outside the folder"
    ! sed 's,/$,,' "$staging/names" | sort | uniq -d | grep . >&2 || fail 1 "archive refused: it contains a name twice"
    while read -r member; do
        case $member in
        "$name" | "$name"/*) ;;
        *) fail 1 "archive refused: $member is outside the folder $name" ;;
        esac
    done <"$staging/names"
    # A sparse file is larger than its archive.
    awk '$3 !~ /^[0-9]+$/ { bad = 1 } { sum += $3 } END { exit bad || sum > 2147483648 }' "$staging/listing" ||
        fail 1 "archive refused: it contains more than 2 GiB, or an entry without a size"
    # If the disk is full, tar prints an error for each file; the first error is enough.
    said=$(
        ulimit -f $most_blocks 2>/dev/null || :
        cd "$staging" && tar -xof "$plain" 2>&1
    ) || fail 1 "cannot unpack $from: $(printf '%s\n' "$said" | sed -n 1p)
hint: check that $home has $(($(wc -c <"$plain") / 524288)) MiB of free space, twice the size of the content"
    rm -f "$plain"
    [ -f "$staging/$name/bin/anneal" ] || fail 1 "archive refused: it contains no program (bin/anneal)"
    [ -z "$(find "$staging/$name" ! -type f ! -type d -o -type f -links +1)" ] || fail 1 "archive refused: it contains a link"
}

check_sums() { # checks the folder $1 against the list $2, or against its own list
    list=${2:-$1/SHA256SUMS}
    (
        cd "$1" || exit 1
        [ -f "$list" ] || exit 1
        cut -c 67- "$list" | sort >"$staging/listed"
        find . -type f ! -path ./SHA256SUMS | cut -c 3- | sort | cmp -s - "$staging/listed" || exit 1
        if has sha256sum; then
            sha256sum -c "$list" >/dev/null 2>&1
        else
            while read -r told member; do
                [ "$(digest "$member")" = "$told" ] || exit 1
            done <"$list"
        fi
    )
}

check_runs() { # fails unless the program of the version in $1 runs
    head=$(od -An -tx1 -N20 "$1/bin/anneal" | tr -d ' \n')
    case $head in
    7f454c460201*3e00) built=x86_64 ;;
    7f454c460201*b700) built=aarch64 ;;
    7f454c46*) built='another machine' ;;
    *) fail 1 "archive refused: bin/anneal is not a program for Linux" ;;
    esac
    here=$(uname -m)
    [ "$here" != arm64 ] || here=aarch64
    [ "$built" = "$here" ] || fail 69 "the archive is for $built, but this machine is $here
hint: use the archive with $here in its name"
    [ -x "$1/bin/anneal" ] || fail 1 "archive refused: bin/anneal is not executable"
    limit=''
    ! has timeout || limit='timeout 10'
    code=0
    # shellcheck disable=SC2086 # two words or none
    said=$(cd "$1" && env -i $limit "$1/bin/anneal" --version 2>&1 </dev/null) || code=$?
    case $code in
    0) ;;
    69) fail 69 "$said" ;;
    124) fail 1 "$1/bin/anneal --version timed out after 10 s" ;;
    *) fail 1 "$1/bin/anneal --version failed (exit code $code): $said" ;;
    esac
}

# --- switching -----------------------------------------------------------------------------------------------------

point() { # points the link $1 at $2 with one rename; returns 1 on failure
    beside=$home/.${1##*/}.$$-$(random)
    if ! ln -s "$2" "$beside" || ! mv -fT "$beside" "$1"; then
        rm -f "$beside"
        tell "error: cannot point $1 at $2"
        return 1
    fi
}

make_links() { # creates the links for the version in $1; each leads through `current`
    check_links "$1"
    wanted "$1" >"$staging/links"
    while read -r link; do
        if ! is_ours "$link"; then
            make_folder "${link%/*}"
            made_links="$made_links$link
"
            ln -s "$(target_of "$link")" "$prefix/$link"
        fi
    done <"$staging/links"
}

sweep() { # removes dangling links of Anneal
    present | while read -r link; do
        [ -e "$prefix/$link" ] || rm -f "$prefix/$link"
    done
}

switch() { # makes the version $1 current, and makes $2, if not empty, the previous version
    earlier=$(named_by "$home/previous")
    deafen
    # If the process is killed between the two renames, the current version stays in place.
    if { [ -z "$2" ] || point "$home/previous" "versions/$2"; } && point "$home/current" "versions/$1"; then
        return
    fi
    if [ -n "$earlier" ]; then
        point "$home/previous" "versions/$earlier" || :
    else
        rm -f "$home/previous"
    fi
    exit 1
}

make_current() { # makes the version $1 current
    becomes=$1
    make_links "$versions/$1"
    before=$(named_by "$home/current")
    sync -f "$home" 2>/dev/null || sync
    [ "$before" = "$1" ] || switch "$1" "$before"
    settle "$1"
}

settle() { # completes the switch to the version $1, which is already current
    # A signal to the process group would end the subshells of `sweep`, and with them the script.
    deafen
    sweep
    heed
    # A slow disk may take minutes. Ctrl-C also stops `sync`; in this case, the script skips the second `sync`.
    if ! sync -f "$home" 2>/dev/null && { [ -n "$stopped" ] || ! sync; }; then
        [ -n "$stopped" ] || fail 1 "$1 is current, but cannot be written completely to the disk
hint: run the command again"
        fail 130 "stopped; $1 is current, but may not be completely on the disk
hint: run sync before you switch off this machine"
    fi
    [ -z "$stopped" ] || warn "the request to stop came too late: $1 is current"
}

check_still_runs() { # fails unless the version $1 is intact and runs, before it becomes current again
    check_sums "$versions/$1" || fail 1 "$1 is damaged
hint: install this version again"
    check_runs "$versions/$1"
}

repair() { # replaces the version $name with $tree
    # No standard program can exchange two folders, so for a moment neither folder is in place.
    deafen
    mv -T "$versions/$name" "$staging/damaged" || fail 1 "cannot move $versions/$name away"
    mv -T "$tree" "$versions/$name" || {
        mv -T "$staging/damaged" "$versions/$name" || :
        fail 1 "cannot move $tree to $versions/$name"
    }
    listen
}

install() {
    [ -n "$from" ] || fail 2 "no archive is given
hint: give an archive with --from FILE|URL; sh install.sh --help lists the arguments"
    if [ -n "$sum" ] && [ "$check" = no ]; then
        fail 2 "--no-check cannot be used with --sha256"
    fi
    file=${from##*/}
    name=${file%.tar.zst}
    name=${name%.tar.gz}
    if [ "$name" = "$file" ] || ! is_name "$name"; then
        fail 2 "$from is not an archive of Anneal
hint: archives are called anneal-VERSION-TARGET-PROFILE.tar.zst or .tar.gz"
    fi
    case $from in
    http://* | https://*) ;;
    *) [ -f "$from" ] || fail 1 "cannot find the archive $from" ;;
    esac
    named_by "$home/current" >/dev/null
    named_by "$home/previous" >/dev/null
    if [ -L "$versions/$name" ] || { [ -e "$versions/$name" ] && [ ! -d "$versions/$name" ]; }; then
        foreign "$versions/$name"
    fi
    settle_key
    case $from in
    # The user's checksum or key did not come over this connection.
    http://*) [ -n "$sum$key" ] || warn "the connection to $from is not encrypted, so an attacker can replace the archive and its checksum
hint: use https, a checksum from another source (--sha256) or a minisign key" ;;
    esac
    make_folder lib/anneal/versions
    lock
    # Copies the archive to the work folder first, so that the script unpacks exactly the content that it checked.
    archive=$staging/$file
    [ -n "$sum" ] || take_small "$from.sha256" "$archive.sha256" || :
    [ -z "$key" ] || take_small "$from.minisig" "$archive.minisig" || :
    take "$from" "$archive" || fail 1 "cannot find $from"
    check_archive
    unpack
    tree=$staging/$name
    check_sums "$tree" || fail 1 "archive refused: the files in $from do not match its SHA256SUMS"
    chmod -R u=rwX,go=rX "$tree"
    check_runs "$tree"
    check_links "$tree"
    if [ -e "$versions/$name" ]; then
        # If the files match the new list but the lists differ, the installed list is damaged.
        cmp -s "$tree/SHA256SUMS" "$versions/$name/SHA256SUMS" || check_sums "$versions/$name" "$tree/SHA256SUMS" ||
            fail 1 "$name is already installed with other content
hint: uninstall that version first, or replace it with cargo xtask install --force"
        if check_sums "$versions/$name" && [ -x "$versions/$name/bin/anneal" ]; then
            make_current "$name"
            say "$name is already installed and is current"
        else
            repair
            make_current "$name"
            say "$name was damaged and has been repaired; it is current"
        fi
        return
    fi
    becomes=$name
    placed=$versions/$name
    mv -T "$tree" "$placed" || fail 1 "cannot move $tree to $placed"
    make_current "$name"
    [ -x "$prefix/bin/anneal" ] || fail 1 "$name is installed in $versions, but $prefix/bin/anneal is a dangling link"
    case :$PATH: in
    *:"$prefix/bin":*) ;;
    *) warn "$prefix/bin is not in PATH
hint: add it to PATH in ~/.profile" ;;
    esac
    say "installed $name as $prefix/bin/anneal"
}

installed() { # fails if nothing is installed
    # With --all, the script also removes leftovers of a killed installer.
    if [ "$all" = yes ] && [ -d "$home" ]; then return; fi
    if [ -z "$(others '')" ]; then
        fail 1 "nothing is installed in $prefix
hint: name the prefix with --prefix DIR"
    fi
}

rollback() {
    installed
    lock
    current=$(named_by "$home/current")
    previous=$(named_by "$home/previous")
    if [ -z "$previous" ] || [ "$current" = "$previous" ] || [ ! -d "$versions/$previous" ]; then
        # An installer was killed between the two renames of a switch.
        previous=$(others "$current" | tail -n 1)
    fi
    if [ -z "$current" ] || [ -z "$previous" ]; then
        fail 1 "cannot roll back: $prefix has no previous version"
    fi
    check_still_runs "$previous"
    becomes=$previous
    make_links "$versions/$previous"
    switch "$previous" "$current"
    settle "$previous"
    say "$previous is current, $current is the previous version"
}

others() { # prints the names of the installed versions other than $1, newest last
    for folder in "$versions"/*; do
        other=${folder##*/}
        if [ "$other" != "$1" ] && is_name "$other" && [ -d "$folder" ] && [ ! -L "$folder" ]; then
            printf '%s\n' "$other"
        fi
    done | if sort -V </dev/null >/dev/null 2>&1; then sort -V; else sort; fi
}

uninstall() {
    installed
    lock
    current=$(named_by "$home/current")
    previous=$(named_by "$home/previous")
    next=''
    if [ "$all" = no ]; then
        [ -n "$current" ] || fail 2 "no version is current
hint: --all removes all versions"
        next=$(others "$current" | tail -n 1)
        if [ -n "$previous" ] && [ "$previous" != "$current" ] && [ -d "$versions/$previous" ]; then
            next=$previous
        fi
    fi
    if [ -n "$next" ]; then
        (check_still_runs "$next") || fail $? "cannot remove $current: $next, which would become current, is not usable"
        becomes=$next
        make_links "$versions/$next"
        deafen
        point "$home/current" "versions/$next"
        if [ "$previous" = "$next" ] || [ "$previous" = "$current" ]; then
            rm -f "$home/previous"
        fi
        sweep
        # The user may have removed the folder.
        [ ! -d "$versions/$current" ] || mv -T "$versions/$current" "$staging/gone"
        heed
        say "removed $current; $next is current"
        return
    fi
    # Removes links first, because a link must never lead to a partial version.
    present | while read -r link; do rm -f "$prefix/$link"; done
    rm -f "$home/current" "$home/previous"
    others '' | while read -r folder; do mv -T "$versions/$folder" "$staging/$folder"; done
    rmdir "$versions" 2>/dev/null || :
    wipe "$staging"
    staging=''
    remove_empty
    say "removed all of Anneal in $prefix"
}

for tool in awk chmod cmp cut find grep od readlink sed sort tar tr uniq wc; do
    has "$tool" || fail 1 "$tool is missing
hint: install the package that contains $tool, such as coreutils, findutils, diffutils or tar"
done
$do
