#include "rendezvous/log/log_rewrite.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "rendezvous/engine/effect.h"

namespace ivy::store {
namespace {

// Bytes of the snapshot that are written with each batch.
constexpr std::size_t kPieceBytes = 4u << 20;

}  // namespace

Result<void> LogRewrite::begin(int directory_fd, const std::string& name, const LogHead& head) {
  cursor_ = {};
  is_replacing_ = false;
  file_ = IVY_TRY(LogFile::open(directory_fd, name, O_EXCL));
  return file_.write_head(head);
}

bool LogRewrite::record(const std::string& effects) {
  if (!is_under_way() || is_replacing_) return true;
  std::optional<std::string> covered = covered_effects(effects, cursor_);
  if (!covered) return false;
  if (!covered->empty()) pending_.push_back(std::move(*covered));
  return true;
}

RecordsToWrite LogRewrite::next_piece(const Engine& engine, std::uint64_t room_bytes,
                                      bool& replaces_log) {
  engine.write_snapshot(cursor_, kPieceBytes, pending_);
  RecordsToWrite work = file_.to_write(pending_);
  is_replacing_ = cursor_.done() && file_.reserve(file_.end() + room_bytes);
  replaces_log = is_replacing_;
  return work;
}

LogFile LogRewrite::take() { return std::exchange(file_, LogFile()); }

void LogRewrite::give_up(int directory_fd, const std::string& name,
                         std::uint64_t not_before_bytes) {
  if (is_under_way()) {
    unlinkat(directory_fd, name.c_str(), 0);
    former_.push_back(file_.release());
  }
  file_ = LogFile();
  pending_.clear();
  not_before_bytes_ = std::max(not_before_bytes_, not_before_bytes);
}

}  // namespace ivy::store
