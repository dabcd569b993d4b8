// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/node_upload.h"

#include <openssl/sha.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "proto/contract/build.h"
#include "proto/contract/text.h"
#include "proto/contract/text_columns.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

constexpr std::string_view kPrefix = "bundle-";
constexpr std::string_view kSuffix = ".run.sha256";
constexpr std::size_t kSha256Digits = 64;
// A rate that was measured over less time means nothing.
constexpr std::int64_t kRateAfterNs = 500'000'000;
// Digits of the hash in a directory's name, enough to tell builds apart.
constexpr std::size_t kNameDigits = 24;

// The remote command. A login shell expands nothing in the quoted part: it contains no single
// quote, no '!', no newline, and a backslash only before a digit or a letter. The constructor
// replaces HASH by the name of the build, and REPAIR by nothing or by 1.
//
// The loop over $b looks for a copy in three directories. A copy is used only if its files have the
// sizes that the bundle lists, because a full disk or a power failure leaves shorter files. In
// /tmp, files may belong to any user. A file is therefore run only if it belongs to this user, is
// not a link, and lies in a directory that no other user may enter. If there is no such copy, the
// command asks for the install script.
constexpr std::string_view kRemoteCommand =
    "exec /bin/sh -c '"
    "h=HASH; w=REPAIR; a=$(uname -m); u=$(id -u); "
    "k=$XDG_CACHE_HOME; case $k in /*) ;; *) k=$HOME/.cache;; esac; "
    "for b in \"$k/ivyrun\" /tmp/ivyrun-cache-$u "
    "/dev/shm/ivyrun-cache-$u; do "
    "d=$b/$h-$a; f=$d/ivy-node; if [ -x \"$f\" ] && [ -O \"$b\" ] && [ -O \"$d\" ] && [ -O \"$f\" "
    "]; then "
    "if [ -h \"$b\" ] || [ -h \"$d\" ] || [ -h \"$f\" ]; then continue; fi; "
    "case $(ls -ld \"$b\") in drwx--[-S]--[-T]*) "
    "l=; z=; { read -r l; read -r z; } 2> /dev/null < \"$d/sizes\"; "
    "if [ -z \"$z\" ]; then w=1; fi; if [ \"$w\" ]; then continue; fi; "
    "[ \"$(cd \"$d\" && echo $(LC_ALL=C wc -c $l 2> /dev/null < /dev/null))\" = \"$z\" ] || "
    "{ w=1; continue; }; "
    "printf \"\\001ivy:ready\\n\"; exec \"$f\" relay;; esac; fi; done; "
    "printf \"\\001ivy:need %s\\n\" \"$a${w:+ damaged}\"; read -r n && eval \"$(head -c \"$n\")\"'";

// The install script. It runs with the variables h, w, a, k and u of the command above; w is set if
// a copy is damaged. For each of the three directories it makes sure that the directory belongs to
// this user and is not a link (both are possible in /tmp), and that programs may run there. It then
// receives, checks, unpacks and renames the bundle. x() notes why a directory cannot be used, and
// the next one is tried.
//
// The whole bundle is read even if it does not fit, so that the next request starts at the first
// byte. Bytes from a connection that broke are kept under the name of the host, because several
// hosts may share a home, and a rename claims them for one installation. Bytes are written with
// cat, which reports a full disk; a shell's own printf and some versions of tar do not.
constexpr std::string_view kInstallScript = R"script(
umask 077
why=
trap 'keep; exit 1' HUP INT TERM PIPE
keep() { [ -z "$t" ] || { [ ! -s "$t/bundle" ] || mv -f "$t/bundle" "$p"; rm -rf "$t"; }; }
x() { why="$why$b: $1; "; [ -z "$t" ] || rm -rf "$t"; t=; }
for b in "$k/ivyrun" "/tmp/ivyrun-cache-$u" "/dev/shm/ivyrun-cache-$u"; do
  d=$b/$h-$a t= p=$b/.part.$s-$(uname -n)
  e=$(mkdir -p "$b" 2>&1) || { x "$e"; continue; }
  if [ -h "$b" ] || [ ! -O "$b" ]; then x 'belongs to another user'; continue; fi
  e=$(chmod 700 "$b" 2>&1) || { x "$e"; continue; }
  if [ -h "$d" ] || [ -h "$d/ivy-node" ] || { [ -e "$d/ivy-node" ] && [ ! -O "$d/ivy-node" ]; } || { [ -e "$d" ] && [ ! -O "$d" ]; }; then
    e=$(rm -rf "$d" 2>&1) || { x "$e"; continue; }
  fi
  e=$(mktemp -d "$b/.new.XXXXXX" 2>&1) || { x "$e"; continue; }
  t=$e
  e=$({ printf '#!/bin/sh\nexit 0\n' | cat > "$t/try" && chmod 700 "$t/try"; } 2>&1) || { x "$e"; continue; }
  e=$("$t/try" 2>&1) || { x "programs may not run there (${e##*: })"; continue; }
  if [ "$w" ] || [ ! -x "$d/ivy-node" ]; then
    o=0
    if [ ! -h "$p" ] && [ -O "$p" ] && mv "$p" "$t/bundle" 2> /dev/null; then o=$(($(wc -c < "$t/bundle"))); fi
    [ "$o" -lt "$n" ] || { rm -f "$t/bundle"; o=0; }
    printf '\001ivy:send %s\n' "$o"
    e=$(head -c "$((n - o))" | { cat >> "$t/bundle"; r=$?; cat > /dev/null; exit "$r"; } 2>&1) || { x "$e"; continue; }
    [ "$(($(wc -c < "$t/bundle")))" = "$n" ] || { keep; exit 1; }
    e=$(sha256sum < "$t/bundle" 2>&1)
    [ "${e%% *}" = "$s" ] || { x "the received bundle differs from the sent one ($e)"; continue; }
    mkdir "$t/in" && chmod 700 "$t/bundle" && e=$(cd "$t/in" && ../bundle "$z" < ../bundle 2>&1 | tar -xof - 2>&1) || { x "$(cat "$t/bundle" 2>&1 > "$t/more") $e"; continue; }
    e=$("$t/in/ivy-node" --version 2>&1) || { x "ivy-node does not run: $e"; continue; }
    sync "$t"/in/* 2> /dev/null
    [ -z "$w" ] || mv "$d" "$t/old" 2> /dev/null
    [ -d "$d" ] || mv "$t/in" "$d" 2> /dev/null
    rm -rf "$d/in"
    [ -x "$d/ivy-node" ] || e=$(mv -f "$t"/in/* "$d/" 2>&1) || { x "$e"; continue; }
  fi
  rm -rf "$t"
  [ -x "$d/ivy-node" ] || { t= x 'ivy-node is missing after its installation'; continue; }
  printf '\001ivy:ready\n'
  exec "$d/ivy-node" relay
done
printf '\001ivy:fail %s\n' "$(printf %s "${why%; }" | tr '\n' ' ')"
exit 1
)script";

bool is_sha256(const std::string& text) {
  return text.size() == kSha256Digits && is_hexadecimal(text);
}

// Reads the description that make_bundle.cmake has written.
Result<NodeBundle> read_description(const std::filesystem::path& path) {
  std::ifstream file(path);
  NodeBundle bundle;
  file >> bundle.sha256 >> bundle.archive_sha256 >> bundle.archive_begin >> bundle.bytes;
  if (!file || !is_sha256(bundle.sha256) || !is_sha256(bundle.archive_sha256) ||
      bundle.archive_begin > bundle.bytes) {
    return Error{Code::kDataLoss, path.string() + " does not describe a bundle",
                 "build or reinstall ivyrun"};
  }
  file >> bundle.build;
  return bundle;
}

// Returns one name for all bundles of a build, so that one command serves hosts of every
// architecture.
std::string name_of(const std::map<std::string, NodeBundle>& by_architecture) {
  std::string all;
  for (const auto& [architecture, bundle] : by_architecture) {
    all += architecture + " " + bundle.sha256 + "\n";
  }
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(all.data()), all.size(), digest);
  return hexadecimal({reinterpret_cast<const char*>(digest), kNameDigits / 2});
}

std::size_t percent_of(std::size_t done, std::size_t total) {
  return total == 0 ? 100 : 100 * done / total;
}

Result<std::string> whole_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (file.is_open() && !file.bad() && !bytes.empty()) return bytes;
  return Error{Code::kNotFound, "cannot read " + path, "build or reinstall ivyrun"};
}

}  // namespace

NodeUpload::NodeUpload(std::string directory, std::map<std::string, NodeBundle> by_architecture)
    : directory_(std::move(directory)),
      by_architecture_(std::move(by_architecture)),
      name_(name_of(by_architecture_)),
      remote_command_(kRemoteCommand) {
  remote_command_.replace(remote_command_.find("HASH"), 4, name_);
  repairing_command_ = remote_command_;
  remote_command_.replace(remote_command_.find("REPAIR"), 6, "");
  repairing_command_.replace(repairing_command_.find("REPAIR"), 6, "1");
}

Result<std::shared_ptr<NodeUpload>> NodeUpload::load(const std::string& directory) {
  std::map<std::string, NodeBundle> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    const std::string architecture =
        name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
    found[architecture] = IVY_TRY(read_description(entry.path()));
  }
  if (found.empty()) {
    return Error{Code::kNotFound, "no bundle-ARCH.run to send to other hosts in " + directory,
                 "build or reinstall ivyrun"};
  }
  return std::shared_ptr<NodeUpload>(new NodeUpload(directory, std::move(found)));
}

Result<NodeBundle> NodeUpload::bundle(const std::string& architecture) {
  const auto known = by_architecture_.find(architecture);
  if (known == by_architecture_.end()) {
    std::string have;
    for (const auto& entry : by_architecture_) have += " " + entry.first;
    return Error{Code::kFailedPrecondition,
                 "the host is " + architecture + "; this ivyrun can start workers on:" + have,
                 "put bundle-" + architecture + ".run and bundle-" + architecture +
                     ".run.sha256 of this build into " + directory_ +
                     "; packages of ivyrun have them, and docs/arm.md shows how to build them"};
  }
  const std::lock_guard lock(mutex_);
  NodeBundle& bundle = known->second;
  if (bundle.content) return bundle;
  const std::string path = directory_ + "/bundle-" + architecture + ".run";
  if (!bundle.build.empty() && bundle.build != build_name()) {
    return Error{Code::kFailedPrecondition,
                 path + " is of build " + bundle.build + "; this ivyrun is build " +
                     std::string(build_name()),
                 "build it again as this ivyrun was (docs/arm.md), or reinstall ivyrun"};
  }
  std::string content = IVY_TRY(whole_file(path));
  if (content.size() != bundle.bytes) {
    return Error{Code::kDataLoss,
                 path + " is incomplete: " + std::to_string(content.size()) + " of " +
                     std::to_string(bundle.bytes) + " bytes",
                 "reinstall ivyrun"};
  }
  bundle.content = std::make_shared<const std::string>(std::move(content));
  return bundle;
}

std::string NodeUpload::install_script(const NodeBundle& bundle) {
  const std::string script = "n=" + std::to_string(bundle.bytes) + " s=" + bundle.sha256 +
                             " z=" + std::to_string(bundle.archive_begin) +
                             std::string(kInstallScript);
  return std::to_string(script.size()) + "\n" + script;
}

UploadProgress::UploadProgress(std::size_t done, std::size_t total)
    : begin_(done),
      total_(total),
      started_ns_(monotonic_ns()),
      last_percent_(percent_of(done, total)) {}

std::optional<UploadState> UploadProgress::moved_to(std::size_t done) {
  const std::size_t percent = percent_of(done, total_);
  if (percent == std::exchange(last_percent_, percent)) return std::nullopt;
  UploadState state{static_cast<int>(percent), mebibytes(total_)};
  const std::int64_t took_ns = monotonic_ns() - started_ns_;
  if (took_ns >= kRateAfterNs && done >= begin_)
    state.mb_per_s =
        static_cast<double>(done - begin_) / 1e6 / (static_cast<double>(took_ns) / 1e9);
  return state;
}

}  // namespace ivy
