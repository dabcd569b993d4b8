#include "rendezvous/log/wal_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "proto/wire/handshake.h"

namespace ivy::store {
namespace {

constexpr std::size_t kReadBytes = 1u << 20;
// Reserved for deletes, pops and the rounds of barriers.
constexpr std::uint64_t kSlackBytes = 1u << 20;
// Reserved beyond that for new generations, which are recorded without asking.
constexpr std::uint64_t kLastBytes = 4u << 10;
// Must be free behind a rewritten log.
constexpr std::uint64_t kRewriteRoomBytes = (4u << 20) + kSlackBytes;

}  // namespace

WalFile::WalFile(std::string directory, std::string job_id, Engine& engine)
    : directory_(std::move(directory)),
      job_id_(std::move(job_id)),
      name_(job_id_ + ".wal"),
      engine_(engine) {}

WalFile::~WalFile() {
  engine_.journal_to(nullptr);
  thread_.reset();
  if (rewrite_.is_under_way()) unlinkat(directory_fd_.get(), rewrite_name().c_str(), 0);
}

Result<std::unique_ptr<WalFile>> WalFile::open(const std::string& directory,
                                               const std::string& job_id, Engine& engine) {
  std::unique_ptr<WalFile> file(new WalFile(directory, job_id, engine));
  const Result<void> recovered = file->recover();
  if (!recovered.ok())
    return recovered.error().context("the store's log " + directory + "/" + file->name_);
  file->thread_ = IVY_TRY(CommitThread::start());
  engine.journal_to(file.get());
  return file;
}

Result<void> WalFile::recover() {
  if (mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST)
    return disk_error("make the directory");
  directory_fd_.reset(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory_fd_) return disk_error("open the directory");
  log_ = IVY_TRY(LogFile::open(directory_fd_.get(), name_, O_NONBLOCK));
  unlinkat(directory_fd_.get(), rewrite_name().c_str(), 0);
  std::string head(kLogHeadBytes, '\0');
  const ssize_t count = pread(log_.fd(), head.data(), head.size(), 0);
  if (count < 0) return disk_error("read");
  epoch_ = random_bytes(kEpochBytes);
  // A file without a whole head is new: the head is synced before anything is acknowledged.
  if (count < static_cast<ssize_t>(kLogHeadBytes)) {
    IVY_CHECK(log_.cut(0, 1));
    IVY_CHECK(log_.write_head({job_id_, epoch_}));
  } else {
    Result<LogHead> read = decode_log_head(head);
    if (read.ok() && read->job_id != job_id_)
      read = Error{Code::kDataLoss, "it is of job " + read->job_id};
    if (!read.ok())
      return Error{Code::kDataLoss, read.error().message, "move the file away to begin without it"};
    std::uint64_t good_end = 0;
    std::uint64_t next_sequence = 0;
    const LogReader::End end = IVY_TRY(replay(good_end, next_sequence));
    if (end != LogReader::End::kDamaged) epoch_ = read->epoch;
    // Write the new epoch before the cut: a cleanly cut file would pass for a whole one.
    if (end == LogReader::End::kDamaged) {
      IVY_CHECK(log_.write_head({job_id_, epoch_}));
      IVY_CHECK(log_.sync());
    }
    IVY_CHECK(log_.cut(good_end, next_sequence));
  }
  is_new_ = log_.is_empty();
  IVY_CHECK(log_.sync());
  return fsync(directory_fd_.get()) == 0 ? Result<void>() : disk_error("sync");
}

Result<LogReader::End> WalFile::replay(std::uint64_t& good_end, std::uint64_t& next_sequence) {
  LogReader reader;
  std::string piece(kReadBytes, '\0');
  std::uint64_t offset = kLogHeadBytes;
  while (reader.end() != LogReader::End::kDamaged) {
    const ssize_t count = pread(log_.fd(), piece.data(), piece.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return disk_error("read");
    if (count == 0) break;
    offset += static_cast<std::uint64_t>(count);
    reader.feed(std::string_view(piece).substr(0, static_cast<std::size_t>(count)));
    while (const auto effects = reader.next()) IVY_CHECK(engine_.replay(*effects));
  }
  struct stat whole {};
  fstat(log_.fd(), &whole);
  good_end = kLogHeadBytes + reader.good_bytes();
  next_sequence = reader.records() + 1;
  const std::string rest =
      std::to_string(static_cast<std::uint64_t>(whole.st_size) - good_end) + " bytes ";
  found_ = std::to_string(reader.records()) + " records, " + std::to_string(engine_.key_count()) +
           " keys of generation " + std::to_string(engine_.generation());
  if (reader.end() == LogReader::End::kCutOff)
    found_ += "; " + rest + "of a record that was never acknowledged are cut off";
  if (reader.end() == LogReader::End::kDamaged) {
    found_ += "; it is damaged at byte " + std::to_string(good_end) + ": the " + rest +
              "from there are lost, so clients of before fail with EpochLost";
  }
  return reader.end();
}

bool WalFile::has_room(std::size_t bytes, Use use) {
  const std::uint64_t kept_back = use == Use::kMore ? kSlackBytes : kLastBytes;
  return log_.reserve(log_.end() + pending_bytes_ + kRecordHeadBytes + bytes + kept_back);
}

void WalFile::record(std::string effects) {
  recorded_ += 1;
  pending_bytes_ += kRecordHeadBytes + effects.size();
  if (!rewrite_.record(effects)) rewrite_.give_up(directory_fd_.get(), rewrite_name(), 0);
  pending_.push_back(std::move(effects));
}

void WalFile::commit() {
  if (batch_.is_out) return;
  if (rewrite_.is_due(log_.end(), engine_.bytes())) begin_rewrite();
  if (pending_.empty() && !rewrite_.is_under_way()) return;
  CommitBatch batch;
  batch.log = log_.to_write(pending_);
  if (rewrite_.is_under_way())
    batch.second = rewrite_.next_piece(engine_, kRewriteRoomBytes, batch.replaces_log);
  batch.directory_fd = directory_fd_.get();
  batch.log_name = name_;
  batch.second_name = rewrite_name();
  batch_ = {true, std::exchange(pending_bytes_, 0), recorded_};
  thread_->submit(std::move(batch));
}

Result<void> WalFile::collect() {
  const std::optional<CommitBatch> batch = thread_->take();
  if (!batch) return {};
  batch_.is_out = false;
  batch_.bytes = 0;
  const bool is_current = rewrite_.is_for(batch->second);
  rewrite_.close_former();
  if (batch->lost) {
    return Error{
        Code::kUnavailable,
        "the store's log " + directory_ + "/" + name_ + " is lost: " + batch->lost->message,
        "make room on that disk or name another directory"};
  }
  committed_ = batch_.recorded;
  if (is_current && batch->second_lost) {
    give_up_rewrite(*batch->second_lost);
  } else if (is_current && batch->replaces_log) {
    log_ = rewrite_.take();
    // Changes recorded meanwhile go there; without room the batch itself will fail.
    log_.reserve(log_.end() + pending_bytes_ + kSlackBytes);
  } else if (is_current && rewrite_.has_no_room()) {
    give_up_rewrite(Error{Code::kResourceExhausted, "no room on the disk"});
  }
  return {};
}

void WalFile::begin_rewrite() {
  const Result<void> begun = rewrite_.begin(directory_fd_.get(), rewrite_name(), {job_id_, epoch_});
  if (!begun.ok()) give_up_rewrite(begun.error());
}

void WalFile::give_up_rewrite(const Error& error) {
  rewrite_.give_up(directory_fd_.get(), rewrite_name(), log_.end() * 2);
  note_ = "the log " + directory_ + "/" + name_ + " is not written anew: " + error.message;
}

}  // namespace ivy::store
