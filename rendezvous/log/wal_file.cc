#include "rendezvous/log/wal_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "proto/wire/handshake.h"
#include "rendezvous/engine/effect.h"

namespace ivy::store {
namespace {

constexpr std::size_t kReadBytes = 1u << 20;
// Reserved ahead of what is recorded, so that reserving is rare.
constexpr std::uint64_t kReserveBytes = 4u << 20;
// Reserved for deletes, pops and the rounds of barriers.
constexpr std::uint64_t kSlackBytes = 1u << 20;
// Reserved beyond that for new generations, which are recorded without asking.
constexpr std::uint64_t kLastBytes = 4u << 10;
// Bytes of the snapshot that are written with each batch.
constexpr std::size_t kPieceBytes = 4u << 20;

std::size_t size_of(const std::vector<std::string>& records) {
  std::size_t bytes = 0;
  for (const std::string& record : records) bytes += kRecordHeadBytes + record.size();
  return bytes;
}

Error disk_error(const std::string& what) { return errno_error(Code::kUnavailable, what, errno); }

}  // namespace

WalFile::WalFile(std::string directory, std::string name, Engine& engine)
    : directory_(std::move(directory)), name_(std::move(name)), engine_(engine) {}

WalFile::~WalFile() {
  engine_.journal_to(nullptr);
  thread_.reset();
  if (anew_ != Anew::kNo) unlinkat(directory_fd_, (name_ + ".new").c_str(), 0);
  former_.insert(former_.end(), {second_.fd, log_.fd, directory_fd_});
  for (const int fd : former_)
    if (fd >= 0) ::close(fd);
}

Result<std::unique_ptr<WalFile>> WalFile::open(const std::string& directory,
                                               const std::string& job_id, Engine& engine) {
  std::unique_ptr<WalFile> file(new WalFile(directory, job_id + ".wal", engine));
  file->job_id_ = job_id;
  Result<void> opened = file->open_file();
  if (opened.ok()) opened = file->recover(job_id);
  if (!opened.ok())
    return opened.error().context("the store's log " + directory + "/" + file->name_);
  file->thread_ = IVY_TRY(CommitThread::start());
  engine.journal_to(file.get());
  return file;
}

Result<void> WalFile::open_file() {
  if (mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST)
    return disk_error("make the directory");
  directory_fd_ = ::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory_fd_ < 0) return disk_error("open the directory");
  log_.fd = openat(directory_fd_, name_.c_str(),
                   O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (log_.fd < 0) return disk_error("open");
  struct stat opened {};
  struct stat there {};
  if (fstat(log_.fd, &opened) != 0) return disk_error("look at it");
  if (!S_ISREG(opened.st_mode))
    return Error{Code::kInvalidArgument, "it is no regular file", "name another directory"};
  IVY_CHECK(lock(log_.fd));
  // Its former owner may have replaced it before we had the lock.
  if (fstatat(directory_fd_, name_.c_str(), &there, AT_SYMLINK_NOFOLLOW) != 0 ||
      there.st_ino != opened.st_ino) {
    return Error{Code::kAlreadyExists, "another store has just replaced it"};
  }
  unlinkat(directory_fd_, (name_ + ".new").c_str(), 0);
  return {};
}

Result<void> WalFile::lock(int fd) const {
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return {};
  if (errno != EWOULDBLOCK) return disk_error("lock it");
  return Error{Code::kAlreadyExists, "another store uses it",
               "end that one first, or name another directory"};
}

Result<void> WalFile::write_head(File& file, const std::string& job_id) const {
  const std::string head = encode_log_head({job_id, epoch_});
  if (pwrite(file.fd, head.data(), head.size(), 0) != static_cast<ssize_t>(head.size()))
    return disk_error("write its head");
  file.end = kLogHeadBytes;
  return {};
}

Result<void> WalFile::recover(const std::string& job_id) {
  std::string head(kLogHeadBytes, '\0');
  const ssize_t count = pread(log_.fd, head.data(), head.size(), 0);
  if (count < 0) return disk_error("read");
  // A file without a whole head is new: the head is synced before anything is acknowledged.
  is_new_ = count < static_cast<ssize_t>(kLogHeadBytes);
  epoch_ = random_bytes(kEpochBytes);
  if (!is_new_) {
    Result<LogHead> read = decode_log_head(head);
    if (read.ok() && read->job_id != job_id)
      read = Error{Code::kDataLoss, "it is of job " + read->job_id};
    if (!read.ok()) {
      return Error{Code::kDataLoss, read.error().message, "move the file away to begin without it"};
    }
    std::uint64_t good_end = kLogHeadBytes;
    const LogReader::End end = IVY_TRY(replay(good_end));
    if (end != LogReader::End::kDamaged) epoch_ = read->epoch;
    // Write the new epoch before the cut: a cleanly cut file would pass for a whole one.
    if (end == LogReader::End::kDamaged) {
      IVY_CHECK(write_head(log_, job_id));
      if (fdatasync(log_.fd) != 0) return disk_error("sync");
    }
    if (ftruncate(log_.fd, static_cast<off_t>(good_end)) != 0) return disk_error("cut it off");
    log_.end = good_end;
    is_new_ = log_.next_sequence == 1;
  } else {
    if (ftruncate(log_.fd, 0) != 0) return disk_error("empty it");
    IVY_CHECK(write_head(log_, job_id));
  }
  log_.reserved_end = log_.end;
  if (fdatasync(log_.fd) != 0 || fsync(directory_fd_) != 0) return disk_error("sync");
  return {};
}

Result<LogReader::End> WalFile::replay(std::uint64_t& good_end) {
  LogReader reader;
  std::string piece(kReadBytes, '\0');
  std::uint64_t offset = kLogHeadBytes;
  while (true) {
    const ssize_t count = pread(log_.fd, piece.data(), piece.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return disk_error("read");
    if (count == 0) break;
    offset += static_cast<std::uint64_t>(count);
    reader.feed(std::string_view(piece).substr(0, static_cast<std::size_t>(count)));
    while (const auto effects = reader.next()) IVY_CHECK(engine_.replay(*effects));
    if (reader.end() == LogReader::End::kDamaged) break;
  }
  struct stat whole {};
  fstat(log_.fd, &whole);
  good_end = kLogHeadBytes + reader.good_bytes();
  log_.next_sequence = reader.records() + 1;
  const std::uint64_t rest = static_cast<std::uint64_t>(whole.st_size) - good_end;
  found_ = std::to_string(reader.records()) + " records, " + std::to_string(engine_.key_count()) +
           " keys of generation " + std::to_string(engine_.generation());
  if (reader.end() == LogReader::End::kCutOff)
    found_ +=
        "; " + std::to_string(rest) + " bytes of a record that was never acknowledged are cut off";
  if (reader.end() == LogReader::End::kDamaged)
    found_ += "; it is damaged at byte " + std::to_string(good_end) + ": the " +
              std::to_string(rest) +
              " bytes from there are lost, so clients of before fail with "
              "EpochLost";
  return reader.end();
}

bool WalFile::reserve(File& file, std::uint64_t until) {
  if (!can_reserve_ || until <= file.reserved_end) return true;
  for (const std::uint64_t wanted : {until + kReserveBytes, until}) {
    int failed = 0;
    do {
      failed = fallocate(file.fd, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(file.reserved_end),
                         static_cast<off_t>(wanted - file.reserved_end));
    } while (failed != 0 && errno == EINTR);
    if (failed == 0) {
      file.reserved_end = wanted;
      return true;
    }
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) continue;
    can_reserve_ = false;
    return true;
  }
  return false;
}

bool WalFile::has_room(std::size_t bytes, Use use) {
  const std::uint64_t kept_back = use == Use::kMore ? kSlackBytes : kLastBytes;
  return reserve(log_, log_.end + pending_bytes_ + kRecordHeadBytes + bytes + kept_back);
}

void WalFile::record(std::string effects) {
  recorded_ += 1;
  pending_bytes_ += kRecordHeadBytes + effects.size();
  if (anew_ == Anew::kWriting) {
    std::optional<std::string> covered = covered_effects(effects, cursor_);
    if (!covered) {
      give_up_anew(Error{Code::kAborted, {}});
    } else if (!covered->empty()) {
      second_pending_.push_back(std::move(*covered));
    }
  }
  pending_.push_back(std::move(effects));
}

RecordsToWrite WalFile::work_of(File& file, std::vector<std::string>& records) {
  RecordsToWrite work{file.fd, file.end, file.next_sequence, {}};
  file.end += size_of(records);
  file.next_sequence += records.size();
  work.records = std::exchange(records, {});
  return work;
}

void WalFile::commit() {
  if (batch_out_) return;
  if (anew_ == Anew::kNo && log_.end > anew_not_before_bytes_ &&
      is_worth_compacting(log_.end, engine_.bytes())) {
    begin_anew();
  }
  if (anew_ == Anew::kWriting) engine_.snapshot(cursor_, kPieceBytes, second_pending_);
  if (pending_.empty() && anew_ == Anew::kNo) return;
  CommitBatch batch;
  batch.log = work_of(log_, pending_);
  if (anew_ == Anew::kWriting) {
    batch.second = work_of(second_, second_pending_);
    batch.replaces_log =
        cursor_.done() && reserve(second_, second_.end + kReserveBytes + kSlackBytes);
    if (batch.replaces_log) anew_ = Anew::kReplacing;
  }
  batch.directory_fd = directory_fd_;
  batch.log_name = name_;
  batch.second_name = name_ + ".new";
  batch_bytes_ = std::exchange(pending_bytes_, 0);
  batch_recorded_ = recorded_;
  batch_out_ = true;
  thread_->submit(std::move(batch));
}

Result<void> WalFile::collect() {
  const std::optional<CommitBatch> batch = thread_->take();
  if (!batch) return {};
  batch_out_ = false;
  batch_bytes_ = 0;
  const bool is_current = batch->second.fd >= 0 && batch->second.fd == second_.fd;
  for (const int fd : std::exchange(former_, {})) ::close(fd);
  if (batch->lost) return in_words(*batch->lost);
  committed_ = batch_recorded_;
  if (is_current && batch->second_lost) {
    give_up_anew(*batch->second_lost);
  } else if (is_current && batch->replaces_log) {
    ::close(log_.fd);
    log_ = std::exchange(second_, File());
    anew_ = Anew::kNo;
    // Changes recorded meanwhile go there; without room the batch itself will fail.
    reserve(log_, log_.end + pending_bytes_ + kSlackBytes);
  } else if (is_current && cursor_.done()) {
    give_up_anew(Error{Code::kResourceExhausted, "no room on the disk"});
  }
  return {};
}

void WalFile::begin_anew() {
  second_.fd = openat(directory_fd_, (name_ + ".new").c_str(),
                      O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  anew_ = Anew::kWriting;
  cursor_ = {};
  if (second_.fd < 0) return give_up_anew(disk_error("open it"));
  Result<void> begun = lock(second_.fd);
  if (begun.ok()) begun = write_head(second_, job_id_);
  second_.reserved_end = second_.end;
  if (!begun.ok()) give_up_anew(begun.error());
}

// Abandons the rewrite. An error without a message means that a new generation has begun, and
// nothing is noted.
void WalFile::give_up_anew(const Error& error) {
  anew_ = Anew::kNo;
  second_pending_.clear();
  if (second_.fd >= 0) {
    unlinkat(directory_fd_, (name_ + ".new").c_str(), 0);
    // The thread may still be writing to it, so close it later: its number must not be reused until
    // then.
    former_.push_back(second_.fd);
  }
  second_ = {};
  if (error.message.empty()) return;
  anew_not_before_bytes_ = log_.end * 2;
  note_ = "the log " + directory_ + "/" + name_ + " is not written anew: " + error.message;
}

Error WalFile::in_words(const Error& error) const {
  return Error{Code::kUnavailable,
               "the store's log " + directory_ + "/" + name_ + " is lost: " + error.message,
               "make room on that disk or name another directory"};
}

}  // namespace ivy::store
