#!/bin/sh
# Installs an archive of Anneal, for people without Rust. It lays things out as `cargo xtask install` does, so that each
# can go on where the other was: PREFIX/lib/anneal/versions/NAME, `current` and `previous` beside it, and links to
# `current` in PREFIX/bin and PREFIX/share. All is made and checked in a folder of its own; one rename makes it current.
#
# Exit codes: 0 done, 1 failed, 2 wrong usage, 69 this machine lacks what the build needs, 75 try again, 130 stopped.

set -eu
LC_ALL=C
export LC_ALL
umask 022

usage() {
    cat <<'END'
Installs Anneal from an archive.

  sh install.sh --from FILE|URL [--prefix DIR]    install and make current
  sh install.sh --rollback [--prefix DIR]         go back to the version before
  sh install.sh --uninstall [--all] [--prefix DIR]
                                                  remove the current version, or all

  --prefix DIR     where to (/usr/local for root, else ~/.local)
  --sha256 HEX     the sum that the archive must have, in place of the one in FILE.sha256
  --no-check       install without a sum: whether the archive is whole, and whose it is, nobody knows then
  --key FILE|KEY   public key of minisign that must have signed the archive (FILE.minisig);
                   or ANNEAL_MINISIGN_KEY, or PREFIX/etc/anneal/minisign.pub
END
}

fail() { # CODE WORDS...
    code=$1
    shift
    tell "error: $*"
    exit "$code"
}

# A file name or the output of another program must not send escape sequences to the terminal.
plain() { tr '\001-\010\013-\037\177' '?'; }

show() {
    case $1 in
    *[[:cntrl:]]*) printf '%s\n' "$1" | plain ;;
    *) printf '%s\n' "$1" ;;
    esac
}

# In a shell of its own, which may die of a reader that is gone. Where nothing can be written the exit code tells it too.
tell() { (show "$*" >&2) || :; }

warn() { tell "warning: $*"; }

say() { # what was done: it stays so where stdout takes no word of it
    code=0
    (show "$*") 2>/dev/null || code=$?
    # SIGPIPE: a reader that has seen enough is no error.
    case $code in
    0 | 141) ;;
    *) fail 1 "cannot write to stdout, and this is done: $*" ;;
    esac
}

has() { command -v "$1" >/dev/null 2>&1; }

# Most entries and 512-byte blocks of one file, as in crates/ship/src/unpack.rs.
most_entries=20000
most_blocks=4194304
most_small=65536 # bytes of a sum or a signature, as in crates/ship/src/install/source.rs
# Longest path of the installer's folder: below it, there must be room in PATH_MAX for the files of an archive.
most_path=3500
newline='
'

do='' from='' prefix='' sum='' check=yes key="${ANNEAL_MINISIGN_KEY:-}" all=no
while [ $# -gt 0 ]; do
    case $1 in
    --from | --prefix | --sha256 | --key)
        # An empty one is a variable that somebody forgot to set: no key, or no sum, would then be asked for.
        if [ $# -lt 2 ] || [ -z "$2" ]; then fail 2 "$1 wants a value"; fi
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
        [ -z "$do" ] || fail 2 "--$do and $1 exclude each other: give one"
        do=${1#--}
        ;;
    --all) all=yes ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) fail 2 "unknown argument $1; sh install.sh --help lists them" ;;
    esac
    shift
done
[ -z "$do" ] || [ -z "$from" ] || fail 2 "--$do and --from exclude each other: give one"
do=${do:-install}
[ "$all" = no ] || [ "$do" = uninstall ] || fail 2 "--all is for --uninstall"
case $sum in
*[!0-9A-Fa-f]*) fail 2 "--sha256 wants 64 hexadecimal digits, not $sum" ;;
*) [ -z "$sum" ] || [ ${#sum} -eq 64 ] || fail 2 "--sha256 wants 64 hexadecimal digits, not $sum" ;;
esac
if [ -z "$prefix" ]; then
    if [ "$(id -u)" = 0 ]; then
        prefix=/usr/local
    else
        prefix=${HOME:?HOME names no folder: say where to install with --prefix DIR}/.local
    fi
fi
case $prefix in
/*) ;;
*) prefix=$PWD/$prefix ;;
esac
# As completion adds them: what is compared with PATH has none.
while [ "$prefix" != "${prefix%/}" ]; do prefix=${prefix%/}; done
home=$prefix/lib/anneal
versions=$home/versions
# Lists of folders have one path per line.
case $prefix in
*"$newline"*) fail 2 "cannot install to $prefix: the path contains a line break; choose another folder with --prefix DIR" ;;
esac
[ ${#home} -le $most_path ] || fail 2 "cannot install to a path of ${#home} bytes: at most $most_path leave room for the \
files of an archive; choose a shorter path with --prefix DIR"

# --- what is there -------------------------------------------------------------------------------------------------

is_name() { # whether $1 can name a version
    case $1 in
    *[!A-Za-z0-9._+-]* | '') return 1 ;;
    anneal-*) [ ${#1} -le 99 ] ;; # longer ones do not fit into a tar header
    *) return 1 ;;
    esac
}

foreign() {
    fail 1 "$1 is there and was not put there by an installer of Anneal: nothing was changed; move it away, or install \
elsewhere with --prefix DIR"
}

named_by() { # prints the version that the link $1 leads to
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

# The names that the version in $1 wants links for.
wanted() {
    for link in bin/anneal share/bash-completion/completions/anneal share/zsh/site-functions/_anneal \
        share/fish/vendor_completions.d/anneal.fish; do
        [ ! -f "$1/$link" ] || printf '%s\n' "$link"
    done
    pages "$1"
}

pages() { # our pages below $1
    for page in "$1"/share/man/man1/anneal.1 "$1"/share/man/man1/anneal-*.1; do
        if [ -e "$page" ] || [ -L "$page" ]; then
            printf 'share/man/man1/%s\n' "${page##*/}"
        fi
    done
}

target_of() { # what a link at $1 below the prefix holds: relative, so that the whole prefix may be moved
    folder=${1%/*}
    if [ -d "$prefix/$folder" ]; then
        root=$(cd -P "$prefix" && pwd -P)
        # Behind a link of the user's own (~/.local/bin, say) the relative way leads elsewhere.
        if [ "$(cd -P "$prefix/$folder" && pwd -P)" != "${root%/}/$folder" ]; then
            printf '%s/lib/anneal/current/%s\n' "${root%/}" "$1"
            return
        fi
    fi
    up=$(printf '%s' "$1" | sed 's,[^/]*/,../,g; s,[^/]*$,,')
    printf '%slib/anneal/current/%s\n' "$up" "$1"
}

is_ours() { [ -L "$prefix/$1" ] && [ "$(readlink "$prefix/$1")" = "$(target_of "$1")" ]; }

check_links() { # of the version in $1
    wanted "$1" | while read -r link; do
        if { [ -e "$prefix/$link" ] || [ -L "$prefix/$link" ]; } && ! is_ours "$link"; then
            foreign "$prefix/$link"
        fi
    done
}

present() { # links of ours
    {
        printf '%s\n' bin/anneal share/bash-completion/completions/anneal share/zsh/site-functions/_anneal \
            share/fish/vendor_completions.d/anneal.fish
        pages "$prefix"
    } | while read -r link; do
        ! is_ours "$link" || printf '%s\n' "$link"
    done
}

# --- one at a time -------------------------------------------------------------------------------------------------

wipe() { # $1 and all below it, whatever rights somebody gave to it
    chmod -R u+rwX "$1" 2>/dev/null || :
    rm -rf "$1" || :
}

staging='' becomes='' made_links='' placed='' locked='' stopped='' missing=''
leave() {
    code=$?
    trap '' INT TERM HUP
    # Links and a version that were made for what did not become current.
    if [ -n "$becomes" ] && [ "$(readlink "$home/current")" != "versions/$becomes" ]; then
        printf '%s' "$made_links" | while read -r link; do rm -f "$prefix/$link"; done
        [ -z "$placed" ] || wipe "$placed"
    fi
    [ -z "$staging" ] || wipe "$staging"
    # Where the first installation was refused, nothing is installed, and no uninstaller will come.
    if [ -n "$locked" ] && [ ! -L "$home/current" ] && [ ! -L "$home/previous" ] && rmdir "$versions" 2>/dev/null; then
        remove_empty
    fi
    exit "$code"
}

listen() { trap 'exit 130' INT TERM HUP; }

# Who asks to stop while links and folders change places would leave what nobody wanted; it takes milliseconds.
deafen() { trap '' INT TERM HUP; }

# After that there is nothing to take back: what remains is done, and who asked to stop is told what is current.
heed() { trap 'stopped=yes' INT TERM HUP; }

lock() {
    trap leave EXIT
    listen
    # A link would lead the line that is written below into another file.
    [ ! -L "$home/.lock" ] || fail 1 "$home/.lock is a symbolic link, which is not followed: remove it"
    (: >>"$home/.lock") 2>/dev/null || {
        unmake
        fail 1 "cannot write to $home: take a folder that you may write to with --prefix DIR, or install as root"
    }
    if has flock; then
        exec 9>>"$home/.lock"
        if ! flock -n 9; then
            fail 75 "$(cat "$home/.lock") is at work in $prefix: wait for its end, then run the same again"
        fi
        [ -e "$home/.lock" ] || fail 75 "another installer has just ended: run the same again"
    else
        warn "flock is not there (util-linux brings it): start no second installer meanwhile"
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
    # The name first: whatever comes between, it is known what to remove.
    staging=$home/.staging-$$-$(random)
    mkdir -m 700 "$staging" || fail 1 "cannot write to $home"
}

random() { # what nobody can guess and occupy: eight hexadecimal digits
    od -An -N4 -tx4 /dev/urandom | tr -d ' \n'
}

make_folder() { # $1 below the prefix; which ones had to be made is remembered: those go again with the last version
    missing='' folder=$prefix/$1
    while [ -n "$folder" ] && [ ! -d "$folder" ]; do
        missing="$missing$folder
"
        folder=${folder%/*}
    done
    [ -n "$missing" ] || return 0
    mkdir -p "$prefix/$1" || {
        unmake
        fail 1 "cannot make $prefix/$1: take a folder that you may write to with --prefix DIR, or install as root"
    }
    [ -d "$home" ] || return 0
    # One that is not in the list would never go.
    beside=$home/.folders.$$-$(random)
    # noclobber: a link that lies there is not followed.
    if ! made=$(told_folders) || ! (set -C && printf '%s\n' "$made" | sort -u >"$beside") ||
        ! mv -f "$beside" "$home/folders"; then
        rm -f "$beside"
        unmake
        fail 1 "cannot write $home/folders: is the disk full?"
    fi
}

unmake() { # the folders $missing, the deepest first
    printf '%s' "$missing" | while IFS= read -r folder; do rmdir "$folder" 2>/dev/null || :; done
}

told_folders() { # those in the list, and $missing
    [ ! -e "$home/folders" ] || cat "$home/folders" || return 1
    printf '%s' "$missing" | while IFS= read -r folder; do
        case $folder in
        "$prefix") printf '.\n' ;;
        "$prefix"/*) printf '%s\n' "${folder#"$prefix"/}" ;;
        */..) ;; # was there, whatever lies before it
        # By where it lies: the prefix may be called otherwise the next time, or be moved away from there.
        *) (cd -P "$folder" && pwd -P) ;;
        esac
    done
}

remove_folders() { # those told on stdin, the deepest first; what is not empty holds what others put there
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

remove_empty() { # all that is ours, where no version is
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
        fail 1 "cannot check $1: install one of sha256sum (coreutils), shasum (perl), openssl"
    fi | cut -c 1-64
}

fetch() { # URL FILE MOST-BYTES LIMIT-SECONDS; 1 when it is not there
    case $1 in
    https:*) protocols='=https' ;;
    *) protocols='=http,https' ;;
    esac
    if has curl; then
        # Of an answer without a length older ones take more than they are told.
        code=0
        status=$(ulimit -f $(($3 / 512)) 2>/dev/null || :
            curl -g -sSL --proto "$protocols" --proto-redir "$protocols" --max-redirs 5 --max-filesize "$3" \
            --connect-timeout 30 --speed-limit 1024 --speed-time 30 --max-time "$4" -o "$2" -w '%{http_code}' "$1") ||
            code=$?
        case $code in
        0) ;;
        # 153: SIGXFSZ
        63 | 153) fail 1 "$1 is larger than $3 bytes: it is not what it should be" ;;
        *) fail 75 "cannot fetch $1: is the network there?" ;;
        esac
    elif has wget; then
        # It cannot be told to stay with https when it is led elsewhere.
        code=0
        limit=''
        [ "$4" = 0 ] || ! has timeout || limit="timeout $4"
        # shellcheck disable=SC2086 # two words or none
        (
            ulimit -f $(($3 / 512)) 2>/dev/null || :
            $limit wget -S -nv --max-redirect=0 -T 30 -t 1 -o "$staging/answer" -O "$2" "$1"
        ) || code=$?
        # Its exit code tells no 404 from a 403; the server's own words do.
        status=$(sed -n 's,^ *HTTP/[0-9.]* \([0-9][0-9][0-9]\).*,\1,p' "$staging/answer" | tail -n 1)
        case $code:$status in
        0:* | *:[45]??) ;;
        *:3??) fail 1 "$1 leads elsewhere, where wget may leave https: install curl, or give the address that it leads to" ;;
        *)
            plain <"$staging/answer" >&2
            fail 75 "cannot fetch $1: is the network there?"
            ;;
        esac
    else
        fail 1 "cannot fetch $1: install curl or wget, or fetch it and its .sha256 by hand and give the file"
    fi
    case $status in
    200) return 0 ;;
    404 | 410)
        rm -f "$2"
        return 1
        ;;
    429 | 5??) fail 75 "$1 answers $status: try again later" ;;
    *) fail 1 "$1 answers $status" ;;
    esac
}

take() { # $1, of the net or of this machine, to the file $2; 1 when it is not there
    case $1 in
    http://* | https://*) fetch "$1" "$2" $((most_blocks * 512)) 0 ;;
    *)
        [ -f "$1" ] || return 1
        cp -- "$1" "$2" || fail 1 "cannot copy $1 to $2: may it be read, and is there room on the disk?"
        ;;
    esac
}

take_small() { # the same for a sum or a signature, which are read line by line
    case $1 in
    http://* | https://*) fetch "$1" "$2" $most_small 60 ;;
    *)
        [ -f "$1" ] || return 1
        [ "$(wc -c <"$1")" -le $most_small ] || fail 1 "$1 is larger than $most_small bytes: it is not what it should be"
        take "$1" "$2"
        ;;
    esac
}

told_sum() { # the sum of $2 in the list $1
    cr=$(printf '\r')
    # The last line may have no end.
    while read -r told file rest || [ -n "$told" ]; do
        file=${file%"$cr"}
        if [ "${file#\*}" = "$2" ] && [ -z "$rest" ]; then
            printf '%s\n' "$told"
            return 0
        fi
    done <"$1"
    fail 1 "$from.sha256 tells no sum of $2; it belongs to another file"
}

settle_key() { # the key that was given, else the one that is kept; where one cannot be looked for, that is not "none"
    [ -z "$key" ] || return 0
    kept=$prefix/etc/anneal/minisign.pub
    for folder in "$prefix/etc" "$prefix/etc/anneal"; do
        if { [ -e "$folder" ] || [ -L "$folder" ]; } && { [ ! -d "$folder" ] || [ ! -x "$folder" ]; }; then
            fail 1 "cannot tell whether there is a key: $folder is no folder, or may not be looked into"
        fi
    done
    if [ -e "$kept" ] || [ -L "$kept" ]; then
        [ -f "$kept" ] || fail 2 "the key of $kept is no public key of minisign, nor a file that holds one"
        key=$kept
    fi
}

check_archive() { # $archive, whose sum and signature may lie at $archive.sha256 and $archive.minisig
    file=${archive##*/}
    if [ -n "$sum" ]; then
        expected=$sum
    elif [ -f "$archive.sha256" ]; then
        expected=$(told_sum "$archive.sha256" "$file")
    elif [ "$check" = no ]; then
        expected=''
        warn "$from is installed without a sum (--no-check): whether it is whole, and whose it is, nobody knows"
    else
        fail 1 "there is no $from.sha256 beside the archive: fetch that too, or give the sum with --sha256 HEX; --no-check \
installs whatever it is"
    fi
    if [ -n "$expected" ]; then
        expected=$(printf '%s' "$expected" | tr A-F a-f)
        found=$(digest "$archive")
        [ "$found" = "$expected" ] || fail 1 "$file is damaged, or not what was meant: its SHA-256 is $found and should be \
$expected; fetch it again"
    fi
    [ -n "$key" ] || return 0
    [ -f "$archive.minisig" ] || fail 1 "$from has no signature (.minisig) beside it, and there is a key that must have \
signed what is installed"
    has minisign || fail 1 "cannot check the signature of $from: install minisign, or take the key away"
    if [ -f "$key" ]; then flag=-p; else flag=-P; fi
    minisign -V -q -m "$archive" -x "$archive.minisig" "$flag" "$key" >&2 ||
        fail 1 "$from.minisig is not the signature of this archive by the key, or the key is none of minisign's: do not install it"
}

unpack() { # $archive to $staging/$name
    plain=$staging/plain.tar
    case $archive in
    *.gz)
        has gzip || fail 1 "cannot unpack $from: install gzip"
        set -- gzip -dc
        ;;
    *)
        has zstd || fail 1 "cannot unpack $from: install zstd (apt install zstd, dnf install zstd), or take the .tar.gz"
        set -- zstd -q -dc
        ;;
    esac
    # A bomb ends at the limit.
    (
        ulimit -f $most_blocks 2>/dev/null || :
        "$@" "$archive" >"$plain"
    ) || fail 1 "cannot unpack $from: it is damaged, too large, or the disk is full"
    rm -f "$archive"
    tar -tf "$plain" >"$staging/names" || fail 1 "cannot unpack $from: it is damaged"
    tar -tvf "$plain" >"$staging/listing" || fail 1 "cannot unpack $from: it is damaged"
    # What an archive of Anneal never holds is refused before anything of it is written.
    [ "$(wc -l <"$staging/names")" -le $most_entries ] || fail 1 "refused: it holds more than $most_entries files"
    ! grep -v '^[-d]' "$staging/listing" >&2 || fail 1 "refused: it holds what is neither a file nor a folder"
    ! grep -E ' (->|link to) ' "$staging/listing" >&2 || fail 1 "refused: it holds a link"
    ! cut -c 1-10 "$staging/listing" | grep -q '[sStT]' || fail 1 "refused: it holds files with setuid or setgid"
    ! grep -E '[^ -~]|[\]' "$staging/names" >&2 || fail 1 "refused: a name in it holds control characters"
    ! grep -E '(^|/)\.{1,2}(/|$)|^/|//' "$staging/names" >&2 || fail 1 "refused: a name in it leads elsewhere"
    ! sed 's,/$,,' "$staging/names" | sort | uniq -d | grep . >&2 || fail 1 "refused: a name is in it twice"
    while read -r member; do
        case $member in
        "$name" | "$name"/*) ;;
        *) fail 1 "refused: $member in it lies outside of the folder $name" ;;
        esac
    done <"$staging/names"
    # One with holes is larger than its archive.
    awk '$3 !~ /^[0-9]+$/ { bad = 1 } { sum += $3 } END { exit bad || sum > 2147483648 }' "$staging/listing" ||
        fail 1 "refused: it holds more than 2 GiB, or what has no size"
    # A full disk fails each file anew.
    said=$(
        ulimit -f $most_blocks 2>/dev/null || :
        cd "$staging" && tar -xof "$plain" 2>&1
    ) || fail 1 "cannot unpack $from: $(printf '%s\n' "$said" | sed -n 1p); for a while it takes twice the room of what is in \
it, $(($(wc -c <"$plain") / 524288)) MiB below $home"
    rm -f "$plain"
    [ -f "$staging/$name/bin/anneal" ] || fail 1 "$from holds no program"
    [ -z "$(find "$staging/$name" ! -type f ! -type d -o -type f -links +1)" ] || fail 1 "refused: it holds a link"
}

check_sums() { # of the folder $1, by the list $2, else by its own
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

check_runs() { # the version in $1
    head=$(od -An -tx1 -N20 "$1/bin/anneal" | tr -d ' \n')
    case $head in
    7f454c460201*3e00) built=x86_64 ;;
    7f454c460201*b700) built=aarch64 ;;
    7f454c46*) built='another machine' ;;
    *) fail 1 "bin/anneal in it is no program for Linux" ;;
    esac
    here=$(uname -m)
    [ "$here" != arm64 ] || here=aarch64
    [ "$built" = "$here" ] || fail 69 "it is built for $built and this machine is $here: take the archive with $here in its \
name"
    [ -x "$1/bin/anneal" ] || fail 1 "bin/anneal in it may not be run"
    limit=''
    ! has timeout || limit='timeout 10'
    code=0
    # shellcheck disable=SC2086 # two words or none
    said=$(cd "$1" && env -i $limit "$1/bin/anneal" --version 2>&1 </dev/null) || code=$?
    case $code in
    0) ;;
    69) fail 69 "$said" ;;
    124) fail 1 "$1/bin/anneal --version has not ended within 10 s" ;;
    *) fail 1 "$1/bin/anneal --version failed (exit code $code): $said" ;;
    esac
}

# --- switching -----------------------------------------------------------------------------------------------------

point() { # the link $1 at $2, by one rename; 1 when it is not
    beside=$home/.${1##*/}.$$-$(random)
    if ! ln -s "$2" "$beside" || ! mv -fT "$beside" "$1"; then
        rm -f "$beside"
        tell "error: cannot point $1 at $2"
        return 1
    fi
}

make_links() { # those that the version in $1 wants; they lead through `current`
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

sweep() { # links of ours that lead nowhere
    present | while read -r link; do
        [ -e "$prefix/$link" ] || rm -f "$prefix/$link"
    done
}

switch() { # to the version $1 from $2, where there is one
    earlier=$(named_by "$home/previous")
    deafen
    # Killed between these two, the current one is still there.
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

make_current() { # the version $1
    becomes=$1
    make_links "$versions/$1"
    before=$(named_by "$home/current")
    sync -f "$home" 2>/dev/null || sync
    [ "$before" = "$1" ] || switch "$1" "$before"
    settle "$1"
}

settle() { # the version $1, which is current
    # A signal to the process group would end the subshells of `sweep`, and with them the script.
    deafen
    sweep
    heed
    # A slow disk takes minutes for it. Ctrl-C reaches the program too, and nobody wants the second one then.
    if ! sync -f "$home" 2>/dev/null && { [ -n "$stopped" ] || ! sync; }; then
        [ -n "$stopped" ] || fail 1 "$1 is current, and the disk did not take all of it: run the same again"
        fail 130 "stopped; $1 is current already, and the disk may not have all of it: run sync before this machine is \
switched off"
    fi
    [ -z "$stopped" ] || warn "asked to stop when $1 was current already: it stays so"
}

check_still_runs() { # the version $1, before it is made current again
    check_sums "$versions/$1" || fail 1 "$1 is damaged: install it again"
    check_runs "$versions/$1"
}

repair() { # the version $name, by $tree
    # No program of every system lets two folders change places: between these two there is neither.
    deafen
    mv -T "$versions/$name" "$staging/damaged" || fail 1 "cannot move $versions/$name away"
    mv -T "$tree" "$versions/$name" || {
        mv -T "$staging/damaged" "$versions/$name" || :
        fail 1 "cannot move $tree to $versions/$name"
    }
    listen
}

install() {
    [ -n "$from" ] || fail 2 "say what to install with --from FILE|URL; sh install.sh --help tells more"
    if [ -n "$sum" ] && [ "$check" = no ]; then
        fail 2 "--no-check and --sha256 exclude each other: give one"
    fi
    file=${from##*/}
    name=${file%.tar.zst}
    name=${name%.tar.gz}
    if [ "$name" = "$file" ] || ! is_name "$name"; then
        fail 2 "$from is no archive of Anneal: those are called anneal-VERSION-TARGET-PROFILE.tar.zst or .tar.gz"
    fi
    case $from in
    http://* | https://*) ;;
    *) [ -f "$from" ] || fail 1 "there is no file $from" ;;
    esac
    named_by "$home/current" >/dev/null
    named_by "$home/previous" >/dev/null
    if [ -L "$versions/$name" ] || { [ -e "$versions/$name" ] && [ ! -d "$versions/$name" ]; }; then
        foreign "$versions/$name"
    fi
    settle_key
    case $from in
    # A sum that was given, and a key, came another way.
    http://*) [ -n "$sum$key" ] || warn "$from is not encrypted: anybody on the way may give another archive with another \
sum; take https, the sum from elsewhere (--sha256) or a key of minisign" ;;
    esac
    make_folder lib/anneal/versions
    lock
    # Into a folder of our own first: what is checked there is what is unpacked, whoever changes the files meanwhile.
    archive=$staging/$file
    [ -n "$sum" ] || take_small "$from.sha256" "$archive.sha256" || :
    [ -z "$key" ] || take_small "$from.minisig" "$archive.minisig" || :
    take "$from" "$archive" || fail 1 "there is no $from"
    check_archive
    unpack
    tree=$staging/$name
    check_sums "$tree" || fail 1 "what is in $from is not what SHA256SUMS in it says"
    chmod -R u=rwX,go=rX "$tree"
    check_runs "$tree"
    check_links "$tree"
    if [ -e "$versions/$name" ]; then
        # A damaged list is damage, where all else is what it was.
        cmp -s "$tree/SHA256SUMS" "$versions/$name/SHA256SUMS" || check_sums "$versions/$name" "$tree/SHA256SUMS" ||
            fail 1 "$name is installed with other content: uninstall it first (cargo xtask install --force replaces it)"
        if check_sums "$versions/$name" && [ -x "$versions/$name/bin/anneal" ]; then
            make_current "$name"
            say "$name is installed already, and is current"
        else
            repair
            make_current "$name"
            say "$name was damaged and is repaired, and is current"
        fi
        return
    fi
    becomes=$name
    placed=$versions/$name
    mv -T "$tree" "$placed" || fail 1 "cannot move $tree to $placed"
    make_current "$name"
    [ -x "$prefix/bin/anneal" ] || fail 1 "$name is installed in $versions, but $prefix/bin/anneal leads nowhere"
    case :$PATH: in
    *:"$prefix/bin":*) ;;
    *) warn "$prefix/bin is not in PATH: add it to PATH in ~/.profile" ;;
    esac
    say "installed $name as $prefix/bin/anneal"
}

installed() { # fails when nothing is
    # What somebody killed has left behind goes with --all.
    if [ "$all" = yes ] && [ -d "$home" ]; then return; fi
    if [ -z "$(others '')" ]; then
        fail 1 "nothing is installed in $prefix: name the prefix with --prefix DIR"
    fi
}

rollback() {
    installed
    lock
    current=$(named_by "$home/current")
    previous=$(named_by "$home/previous")
    if [ -z "$previous" ] || [ "$current" = "$previous" ] || [ ! -d "$versions/$previous" ]; then
        # Killed between the two renames of a switch.
        previous=$(others "$current" | tail -n 1)
    fi
    if [ -z "$current" ] || [ -z "$previous" ]; then
        fail 1 "there is no version to go back to in $prefix"
    fi
    check_still_runs "$previous"
    becomes=$previous
    make_links "$versions/$previous"
    switch "$previous" "$current"
    settle "$previous"
    say "$previous is current, $current is the one before"
}

others() { # than $1: names of the versions that are there, the newest last
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
        [ -n "$current" ] || fail 2 "no version is current: --all removes all of them"
        next=$(others "$current" | tail -n 1)
        if [ -n "$previous" ] && [ "$previous" != "$current" ] && [ -d "$versions/$previous" ]; then
            next=$previous
        fi
    fi
    if [ -n "$next" ]; then
        (check_still_runs "$next") || fail $? "$current is not removed: $next would be current in its place"
        becomes=$next
        make_links "$versions/$next"
        deafen
        point "$home/current" "versions/$next"
        if [ "$previous" = "$next" ] || [ "$previous" = "$current" ]; then
            rm -f "$home/previous"
        fi
        sweep
        # Somebody may have removed it already.
        [ ! -d "$versions/$current" ] || mv -T "$versions/$current" "$staging/gone"
        heed
        say "removed $current; $next is current"
        return
    fi
    # The links first: they must not lead to half a version.
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
    has "$tool" || fail 1 "$tool is not there: install it first (findutils, diffutils, tar and coreutils bring such)"
done
$do
