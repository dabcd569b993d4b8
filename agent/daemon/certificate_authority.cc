#include "agent/daemon/certificate_authority.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "agent/daemon/certificate_index.h"
#include "agent/daemon/certificate_issue.h"
#include "agent/daemon/private_files.h"
#include "proto/contract/text.h"
#include "proto/os/process.h"
#include "proto/trust/agent_certificate.h"

namespace ivy {
namespace {

constexpr std::int64_t kDay = 24 * 60 * 60;
// Certificates are backdated by a day: a peer's clock may be behind by that much.
constexpr std::int64_t kBackdated = kDay;
constexpr int kMaxAuthorityDays = 36'500;
constexpr int kMaxDays = 3'650;
constexpr int kHostDays = 365;
constexpr int kUserDays = 90;
constexpr int kAuthorityWarnDays = 180;     // A new CA must reach every host.
constexpr std::size_t kMaxAliases = 64;     // Addresses and names of one host.
constexpr std::size_t kMaxCaName = 64;      // As a certificate's common name.
constexpr std::size_t kMaxHostsShown = 20;  // In the advice after `revoke`.
constexpr std::size_t kMaxIndexBytes = 64 * 1024 * 1024;
// A revoked certificate that has expired is kept on the list for clocks that are behind.
constexpr std::int64_t kKeptAfterExpiry = 30 * kDay;

// A certificate's role and name, which tell the names of its files.
struct Subject {
  CertificateRole role = CertificateRole::kUser;
  std::string name;

  bool is_host() const { return role == CertificateRole::kHost; }
  std::string text() const { return (is_host() ? "host/" : "user/") + name; }
  std::string certificate_file() const { return is_host() ? "host.crt" : "user.crt"; }
  std::string key_file() const { return is_host() ? "host.key" : "user.key"; }
  // The arguments of `ivy-agent cert` that make this certificate.
  std::string verb_arguments() const {
    return is_host() ? name + " --serves USER" : "--user " + name;
  }
};

// Puts numeric addresses into canonical form, names into lower case.
std::string canonical_host(const std::string& typed) {
  const std::string address = canonical_address(typed);
  return address.empty() ? lower_case(typed) : address;
}

bool has_control_characters(const std::string& text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

Result<void> check_days(int days, int most) {
  if (days >= 1 && days <= most) return {};
  return Error{Code::kInvalidArgument, "--days " + std::to_string(days) + " is not possible",
               "a number from 1 to " + std::to_string(most)};
}

Result<Subject> user_subject(const std::string& name) {
  IVY_CHECK(check_certificate_name(CertificateRole::kUser, name));
  return Subject{CertificateRole::kUser, name};
}

Result<Subject> host_subject(const std::string& typed) {
  Subject subject{CertificateRole::kHost, canonical_host(typed)};
  IVY_CHECK(check_certificate_name(subject.role, subject.name));
  return subject;
}

// Returns the subject of the two flags: exactly one of them must be given.
Result<Subject> one_subject(const std::string& host, const std::string& user) {
  if (host.empty() == user.empty()) {
    return Error{Code::kInvalidArgument, "a host or a user must be named, and not both",
                 "HOST, or --user NAME"};
  }
  return host.empty() ? user_subject(user) : host_subject(host);
}

Result<std::string> absolute_directory(const std::string& typed) {
  std::error_code failure;
  const std::filesystem::path path = std::filesystem::absolute(typed, failure).lexically_normal();
  if (typed.empty() || has_control_characters(typed)) {
    return Error{Code::kInvalidArgument,
                 "the name of a directory is empty or has control characters in it",
                 "name another one with --out DIR or --ca DIR"};
  }
  if (failure) {
    return Error{Code::kUnavailable, "where is " + typed + "? " + failure.message(),
                 "name the directory with its whole path"};
  }
  // A normalised "DIR/" keeps its slash.
  return path.has_filename() ? path.string() : path.parent_path().string();
}

Result<std::string> ca_directory(const CertificateAuthorityPlace& place) {
  if (!place.directory.empty()) return absolute_directory(place.directory);
  if (place.config_directory.empty()) {
    return Error{Code::kInvalidArgument, "neither HOME nor XDG_CONFIG_HOME says where the CA is",
                 "name its directory with --ca DIR"};
  }
  return absolute_directory(place.config_directory + "/ca");
}

struct Authority {
  DirectoryLock lock;
  std::string directory;
  KeyAndCertificate texts;
  AuthorityFacts facts;
  std::string revocation_list;
  std::vector<IssuedCertificate> issued;

  std::string index_path() const { return directory + "/issued.txt"; }
};

Error no_authority(const std::string& directory) {
  return Error{Code::kNotFound, "there is no certificate authority in " + directory,
               "make one with `ivy-agent ca init`, or name its directory with --ca DIR"};
}

// Refuses a key that others can read, as ssh does, so that the user notices.
Result<std::string> read_key(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && (status.st_mode & 077) != 0) {
    return Error{Code::kPermissionDenied,
                 "the key of the CA, " + path + ", is open to other users: it is not used",
                 "chmod 600 " + path + "; if somebody may have read it, make a new CA"};
  }
  return read_regular_file(path, kMaxCertificateBytes);
}

Result<Authority> open_authority(const CertificateAuthorityPlace& place) {
  const std::string directory = IVY_TRY(ca_directory(place));
  if (!file_exists(directory + "/ca.key")) return no_authority(directory);
  IVY_CHECK(check_private_directory(directory, DirectoryAccess::kNobody));
  Authority authority{IVY_TRY(DirectoryLock::take(directory)), directory, {}, {}, {}, {}};
  authority.texts.key_pem = IVY_TRY(read_key(directory + "/ca.key"));
  authority.texts.certificate_pem =
      IVY_TRY(read_regular_file(directory + "/ca.crt", kMaxCertificateBytes));
  authority.revocation_list =
      IVY_TRY(read_regular_file(directory + "/ca.crl", kMaxRevocationBytes));
  const std::string index = IVY_TRY(read_regular_file(authority.index_path(), kMaxIndexBytes));
  authority.issued = IVY_TRY(parse_index(index, authority.index_path()));
  authority.facts = IVY_TRY(authority_facts(authority.texts.certificate_pem));
  return authority;
}

FileContents index_file(const Authority& authority) {
  return {"issued.txt", index_text(authority.issued), 0600};
}

std::string authority_warning(const AuthorityFacts& facts, std::int64_t now_unix_s) {
  const std::string warning = expiry_warning(facts.not_after, now_unix_s, kAuthorityWarnDays);
  if (warning.empty()) return {};
  return "the CA " + warning +
         ": make another with `ivy-agent ca init --ca DIR`, and put both ca.crt in one file on "
         "every host until all certificates are of the new one\n";
}

Error in_the_way(const std::string& what, const std::string& out) {
  return Error{Code::kAlreadyExists, what,
               "choose another directory with --out DIR, or move these files out of " + out};
}

Result<void> check_no_other_subject(const std::string& out, const Subject& subject) {
  const std::string path = out + "/" + subject.certificate_file();
  if (!file_exists(path)) return {};
  const Result<std::string> pem = read_regular_file(path, kMaxCertificateBytes);
  if (!pem) return pem.error();
  const Result<CertificateIdentity> identity = read_certificate(*pem);
  if (!identity) return in_the_way(path + " is in the way: " + identity.error().message, out);
  if (identity->role == subject.role && identity->name == subject.name) return {};
  return in_the_way(path + " is the certificate of " +
                        Subject{identity->role, identity->name}.text() + ", not of " +
                        subject.text(),
                    out);
}

Result<void> check_no_other_authority(const std::string& out, const Authority& authority) {
  const std::string path = out + "/ca.crt";
  if (!file_exists(path)) return {};
  const std::string pem = IVY_TRY(read_regular_file(path, kMaxCertificateBytes));
  // A file may hold two CAs while one replaces the other; ours must be among them.
  if (pem.find(authority.texts.certificate_pem) != std::string::npos) return {};
  return in_the_way(path + " is of another CA than " + authority.directory + "/ca.crt", out);
}

Result<void> prepare_out(const std::string& out, const Subject& subject,
                         const Authority& authority) {
  IVY_CHECK(make_private_directory(out, DirectoryAccess::kReadable));
  std::error_code ignored;
  if (std::filesystem::equivalent(out, authority.directory, ignored)) {
    return Error{Code::kInvalidArgument, out + " is the directory of the CA itself",
                 "choose another one with --out DIR"};
  }
  IVY_CHECK(check_no_other_authority(out, authority));
  return check_no_other_subject(out, subject);
}

struct Order {
  Subject subject;
  CertificateRequest request;
  std::string out;  // An absolute path, prepared for use.
  std::vector<FileContents> beside;
};

Result<void> check_still_valid(const Authority& authority, std::int64_t now_unix_s) {
  if (authority.facts.not_after > now_unix_s) return {};
  return Error{Code::kFailedPrecondition,
               "the CA in " + authority.directory + " " +
                   expiry_warning(authority.facts.not_after, now_unix_s),
               "make a new one: `ivy-agent ca init --ca DIR`"};
}

// The index is written first: a certificate that is not in it could never be revoked by name.
Result<void> record(Authority& authority, const IssuedCertificate& issued, const std::string& pem) {
  const std::string copies = authority.directory + "/issued";
  IVY_CHECK(make_private_directory(copies, DirectoryAccess::kNobody));
  IVY_CHECK(write_files(copies, {{issued.serial + ".crt", pem, 0600}}));
  authority.issued.push_back(issued);
  return write_files(authority.directory, {index_file(authority)});
}

// Keeps the other CA's certificate that is in the same file during a change of CAs.
FileContents anchor_file(const Order& order, const Authority& authority) {
  const Result<std::string> there = read_regular_file(order.out + "/ca.crt", kMaxCertificateBytes);
  return {"ca.crt", there.ok() ? *there : authority.texts.certificate_pem, 0644};
}

Result<CertificateIdentity> issue(Authority& authority, Order order) {
  order.request.not_after = std::min(order.request.not_after, authority.facts.not_after);
  const KeyAndCertificate made = IVY_TRY(issue_certificate(authority.texts, order.request));
  const CertificateIdentity identity = IVY_TRY(read_certificate(made.certificate_pem));
  IVY_CHECK(record(
      authority, {identity.serial, identity.role, identity.name, identity.not_after, 0, order.out},
      made.certificate_pem));
  std::vector<FileContents> files{anchor_file(order, authority),
                                  {"ca.crl", authority.revocation_list, 0644}};
  files.insert(files.end(), order.beside.begin(), order.beside.end());
  // The certificate comes last: a program that watches it for changes then finds its key beside it.
  files.push_back({order.subject.key_file(), made.key_pem, 0600});
  files.push_back({order.subject.certificate_file(), made.certificate_pem, 0644});
  IVY_CHECK(write_files(order.out, files));
  return identity;
}

CertificateRequest start_request(const Subject& subject, std::int64_t now_unix_s, int days) {
  CertificateRequest request;
  request.common_name = subject.name;
  request.uris.push_back("ivy://" + subject.text());
  request.extended_usages.push_back(subject.is_host() ? "serverAuth" : "clientAuth");
  request.not_before = now_unix_s - kBackdated;
  request.not_after = now_unix_s + days * kDay;
  return request;
}

Result<void> add_host_name(const std::string& typed, CertificateRequest& request) {
  const std::string address = canonical_address(typed);
  std::vector<std::string>& names = address.empty() ? request.dns_names : request.addresses;
  const std::string name = address.empty() ? lower_case(typed) : address;
  IVY_CHECK(check_certificate_name(CertificateRole::kHost, name));
  if (address.empty() && name.find(':') != std::string::npos) {
    return Error{Code::kInvalidArgument,
                 "\"" + name + "\" is neither a DNS name nor a numeric address",
                 "names only, without a port"};
  }
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  return {};
}

Result<CertificateRequest> host_request(const HostCertificateArguments& arguments,
                                        const Subject& subject) {
  if (arguments.aliases.size() > kMaxAliases) {
    return Error{Code::kInvalidArgument,
                 "more than " + std::to_string(kMaxAliases) + " names for one host",
                 "leave out those by which nobody calls it"};
  }
  CertificateRequest request = start_request(subject, arguments.place.now_unix_s, arguments.days);
  IVY_CHECK(add_host_name(subject.name, request));
  for (const std::string& alias : arguments.aliases) IVY_CHECK(add_host_name(alias, request));
  if (!arguments.serves.empty()) {
    IVY_CHECK(check_certificate_name(CertificateRole::kUser, arguments.serves));
    request.uris.push_back("ivy://serves/" + arguments.serves);
  }
  return request;
}

FileContents config_file(std::uint16_t port) {
  AgentConfig config;
  config.port = port;
  config.ca = "ca.crt";  // Relative: the directory may be carried to another account.
  config.revoked = "ca.crl";
  config.certificate = "user.crt";
  config.key = "user.key";
  return {"agent.toml", agent_config_text(config), 0644};
}

// The port in the existing agent.toml; one that cannot be read is replaced by the default.
std::uint16_t port_to_write(std::uint16_t asked, const std::string& out) {
  if (asked != 0) return asked;
  const std::string path = out + "/agent.toml";
  const Result<std::string> text = read_regular_file(path, kMaxCertificateBytes);
  if (!text) return kDefaultAgentPort;
  const Result<AgentConfig> config = parse_agent_config(*text, path);
  return config.ok() ? config->port : kDefaultAgentPort;
}

std::string issued_text(const CertificateIdentity& identity, const Order& order) {
  std::string text = order.subject.text() + ": certificate until " +
                     certificate_date(identity.not_after) + ", serial " + identity.serial + "\n";
  if (!order.subject.is_host()) return text;
  std::vector<std::string> names = identity.dns_names;
  names.insert(names.end(), identity.addresses.begin(), identity.addresses.end());
  text += "  names: " + joined(names, " ") + "\n";
  text += "  serves: " + (identity.serves.empty() ? "any user" : identity.serves) + "\n";
  return text;
}

std::string host_advice(const Order& order) {
  return "  files: " + order.out +
         "/{ca.crt,ca.crl,host.crt,host.key}\n"
         "Copy them to " +
         order.subject.name +
         ", into /etc/ivyrun/agent for an agent of the system, or into ~/.config/ivyrun/agent for "
         "one that a user starts; there host.key must belong to the user that is served, mode "
         "0600. An agent that runs reads them anew by itself.\n";
}

std::string user_advice(const Order& order, const std::string& default_directory) {
  std::string text = "  files: " + order.out + "/{agent.toml,ca.crt,ca.crl,user.crt,user.key}\n";
  if (order.out == default_directory) {
    return text + "ivyrun finds them there. On other hosts from which " + order.subject.name +
           " launches, copy them to ~/.config/ivyrun (user.key with mode 0600).\n";
  }
  return text + "Copy them to ~/.config/ivyrun of " + order.subject.name +
         " wherever ivyrun is called (user.key with mode 0600), or set IVY_AGENT_CONFIG=" +
         order.out + "/agent.toml.\n";
}

std::string shortened_note(const CertificateIdentity& identity, std::int64_t wanted) {
  if (identity.not_after >= wanted) return {};
  return "Not longer than the CA itself, which ends then.\n";
}

Result<std::string> issue_and_tell(Authority& authority, const Order& order,
                                   const CertificateAuthorityPlace& place) {
  const CertificateIdentity identity = IVY_TRY(issue(authority, order));
  std::string text = issued_text(identity, order);
  if (order.subject.is_host()) {
    text += host_advice(order);
  } else {
    const Result<std::string> usual = absolute_directory(place.config_directory);
    text += user_advice(order, usual.ok() ? *usual : "");
  }
  return text + shortened_note(identity, order.request.not_after) +
         authority_warning(authority.facts, place.now_unix_s);
}

Result<IssuedCertificate> last_of(const Authority& authority, const Subject& subject) {
  const IssuedCertificate* const last = newest_of(authority.issued, subject.role, subject.name);
  if (last != nullptr) return *last;
  return Error{
      Code::kNotFound,
      "the CA in " + authority.directory + " has made no certificate for " + subject.text(),
      "`ivy-agent certs` lists them; `ivy-agent cert " + subject.verb_arguments() + "` makes one"};
}

Result<CertificateIdentity> last_identity(const Authority& authority,
                                          const IssuedCertificate& last) {
  const std::string path = authority.directory + "/issued/" + last.serial + ".crt";
  const std::string pem = IVY_TRY(read_regular_file(path, kMaxCertificateBytes));
  Result<CertificateIdentity> identity = read_certificate(pem);
  if (!identity) return identity.error().context(path);
  return identity;
}

Result<Order> renewal(const Authority& authority, const Subject& subject,
                      const RenewArguments& arguments) {
  const IssuedCertificate last = IVY_TRY(last_of(authority, subject));
  if (last.revoked_at != 0) {
    return Error{Code::kFailedPrecondition,
                 subject.text() + " was revoked on " + certificate_date(last.revoked_at) +
                     ": it is not renewed",
                 "to trust it again: `ivy-agent cert " + subject.verb_arguments() + "`"};
  }
  const CertificateIdentity identity = IVY_TRY(last_identity(authority, last));
  const int usual_days = subject.is_host() ? kHostDays : kUserDays;
  Order order;
  order.subject = subject;
  order.request = start_request(subject, arguments.place.now_unix_s,
                                arguments.days == 0 ? usual_days : arguments.days);
  order.request.dns_names = identity.dns_names;
  order.request.addresses = identity.addresses;
  if (!identity.serves.empty()) order.request.uris.push_back("ivy://serves/" + identity.serves);
  order.out = arguments.out.empty() ? last.directory : IVY_TRY(absolute_directory(arguments.out));
  return order;
}

Result<std::string> signed_list(const Authority& authority, std::int64_t now_unix_s) {
  std::vector<RevokedSerial> revoked;
  for (const IssuedCertificate& one : authority.issued) {
    if (one.revoked_at == 0 || one.not_after + kKeptAfterExpiry < now_unix_s) continue;
    revoked.push_back({one.serial, one.revoked_at});
  }
  // The list is valid as long as the CA: one that expires would stop every agent on that day. The
  // date is its number too, since lists are made one at a time.
  return sign_revocation_list(authority.texts, revoked,
                              {now_unix_s - kBackdated, authority.facts.not_after, now_unix_s});
}

bool is_meant(const IssuedCertificate& one, const std::optional<Subject>& subject,
              const std::string& serial) {
  return subject ? one.role == subject->role && one.name == subject->name : one.serial == serial;
}

// Marks the certificates that match as revoked and returns one line for each; empty when none
// matches.
std::string mark_revoked(std::vector<IssuedCertificate>& issued,
                         const std::optional<Subject>& subject, const std::string& serial,
                         std::int64_t now_unix_s) {
  std::string text;
  for (IssuedCertificate& one : issued) {
    if (!is_meant(one, subject, serial) || one.not_after <= now_unix_s) continue;
    const std::string before =
        one.revoked_at == 0 ? "" : " (already on " + certificate_date(one.revoked_at) + ")";
    if (one.revoked_at == 0) one.revoked_at = now_unix_s;
    text += "revoked: " + Subject{one.role, one.name}.text() + ", serial " + one.serial +
            ", until " + certificate_date(one.not_after) + before + "\n";
  }
  return text;
}

std::string hosts_in_use(const Authority& authority, std::int64_t now_unix_s) {
  std::vector<std::string> hosts;
  for (const IssuedCertificate& one : authority.issued) {
    if (one.role != CertificateRole::kHost || one.revoked_at != 0) continue;
    if (one.not_after > now_unix_s) hosts.push_back(one.name);
  }
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  const std::size_t more = hosts.size() > kMaxHostsShown ? hosts.size() - kMaxHostsShown : 0;
  hosts.resize(hosts.size() - more);
  return joined(hosts, " ") + (more == 0 ? "" : " and " + std::to_string(more) + " more");
}

std::string revocation_advice(const Authority& authority, std::int64_t now_unix_s) {
  const std::string list = authority.directory + "/ca.crl";
  const std::string hosts = hosts_in_use(authority, now_unix_s);
  return "The new list is " + list + ". It takes effect where it is copied to:\n" + "  every host" +
         (hosts.empty() ? "" : " (" + hosts + ")") +
         ": ca.crl beside host.crt, in /etc/ivyrun/agent or ~/.config/ivyrun/agent\n"
         "  every user: ~/.config/ivyrun/ca.crl\n"
         "An agent that runs reads it anew by itself and ends no job.\n";
}

Result<void> check_ca_name(const std::string& name) {
  if (!name.empty() && name.size() <= kMaxCaName && !has_control_characters(name)) return {};
  return Error{Code::kInvalidArgument, "--name: not 1 to 64 bytes of plain text",
               "for example --name \"cluster blue\""};
}

std::string usual_ca_name(std::int64_t now_unix_s) {
  // Cut so that it fits into the name together with our words.
  const std::string name = own_host_name().substr(0, kMaxCaName - 24);
  return "ivyrun CA " + (name.empty() ? "" : name + " ") + certificate_date(now_unix_s);
}

}  // namespace

std::string ivyrun_config_directory(const Environment& environment) {
  const std::string* const config_home = find_variable(environment, "XDG_CONFIG_HOME");
  if (config_home != nullptr && config_home->starts_with('/')) return *config_home + "/ivyrun";
  const std::string* const home = find_variable(environment, "HOME");
  return home == nullptr || home->empty() ? std::string() : *home + "/.config/ivyrun";
}

Result<std::string> ca_init(const CaInitArguments& arguments) {
  const std::int64_t now = arguments.place.now_unix_s;
  const std::string directory = IVY_TRY(ca_directory(arguments.place));
  const std::string name = arguments.name.empty() ? usual_ca_name(now) : arguments.name;
  IVY_CHECK(check_days(arguments.days, kMaxAuthorityDays));
  IVY_CHECK(check_ca_name(name));
  IVY_CHECK(make_private_directory(directory, DirectoryAccess::kNobody));
  Authority authority{IVY_TRY(DirectoryLock::take(directory)), directory, {}, {}, {}, {}};
  for (const char* file : {"ca.key", "ca.crt", "ca.crl", "issued.txt"}) {
    if (!file_exists(directory + "/" + file)) continue;
    return Error{Code::kAlreadyExists,
                 directory + "/" + file + " exists: a CA is never overwritten",
                 "use it as it is, or name another directory with --ca DIR"};
  }
  authority.texts = make_authority(name, now - kBackdated, now + arguments.days * kDay);
  authority.facts = IVY_TRY(authority_facts(authority.texts.certificate_pem));
  const std::string list = IVY_TRY(signed_list(authority, now));
  // The key comes last: with it the CA exists.
  IVY_CHECK(write_files(directory, {index_file(authority),
                                    {"ca.crl", list, 0644},
                                    {"ca.crt", authority.texts.certificate_pem, 0644},
                                    {"ca.key", authority.texts.key_pem, 0600}}));
  return "CA \"" + name + "\" in " + directory + ", until " +
         certificate_date(authority.facts.not_after) +
         "\nAnyone with ca.key can launch jobs as any user. Keep it here only, plus an offline "
         "backup.\nNext: `ivy-agent cert HOST --serves USER` for each host, `ivy-agent cert --user "
         "NAME` for each user.\n";
}

Result<std::string> make_host_certificate(const HostCertificateArguments& arguments) {
  Order order;
  order.subject = IVY_TRY(host_subject(arguments.host));
  IVY_CHECK(check_days(arguments.days, kMaxDays));
  order.request = IVY_TRY(host_request(arguments, order.subject));
  order.out = IVY_TRY(
      absolute_directory(arguments.out.empty() ? "./" + order.subject.name : arguments.out));
  Authority authority = IVY_TRY(open_authority(arguments.place));
  IVY_CHECK(check_still_valid(authority, arguments.place.now_unix_s));
  IVY_CHECK(prepare_out(order.out, order.subject, authority));
  return issue_and_tell(authority, order, arguments.place);
}

Result<std::string> make_user_certificate(const UserCertificateArguments& arguments) {
  Order order;
  order.subject = IVY_TRY(user_subject(arguments.user));
  IVY_CHECK(check_days(arguments.days, kMaxDays));
  order.request = start_request(order.subject, arguments.place.now_unix_s, arguments.days);
  order.out = IVY_TRY(
      absolute_directory(arguments.out.empty() ? arguments.place.config_directory : arguments.out));
  Authority authority = IVY_TRY(open_authority(arguments.place));
  IVY_CHECK(check_still_valid(authority, arguments.place.now_unix_s));
  IVY_CHECK(prepare_out(order.out, order.subject, authority));
  order.beside.push_back(config_file(port_to_write(arguments.port, order.out)));
  return issue_and_tell(authority, order, arguments.place);
}

Result<std::string> renew_certificate(const RenewArguments& arguments) {
  const Subject subject = IVY_TRY(one_subject(arguments.host, arguments.user));
  if (arguments.days != 0) IVY_CHECK(check_days(arguments.days, kMaxDays));
  Authority authority = IVY_TRY(open_authority(arguments.place));
  IVY_CHECK(check_still_valid(authority, arguments.place.now_unix_s));
  Order order = IVY_TRY(renewal(authority, subject, arguments));
  IVY_CHECK(prepare_out(order.out, order.subject, authority));
  if (!subject.is_host() && !file_exists(order.out + "/agent.toml")) {
    order.beside.push_back(config_file(kDefaultAgentPort));
  }
  return issue_and_tell(authority, order, arguments.place);
}

Result<std::string> revoke_certificates(const RevokeArguments& arguments) {
  const std::int64_t now = arguments.place.now_unix_s;
  std::optional<Subject> subject;
  std::string serial;
  if (arguments.serial.empty()) {
    subject = IVY_TRY(one_subject(arguments.host, arguments.user));
  } else if (arguments.host.empty() && arguments.user.empty()) {
    serial = IVY_TRY(canonical_serial(arguments.serial));
  } else {
    return Error{Code::kInvalidArgument, "--serial names one certificate: no name beside it",
                 "HOST, --user NAME or --serial S"};
  }
  Authority authority = IVY_TRY(open_authority(arguments.place));
  const std::string marked = mark_revoked(authority.issued, subject, serial, now);
  if (marked.empty()) {
    return Error{Code::kNotFound,
                 "the CA in " + authority.directory + " has no unexpired certificate of " +
                     (subject ? subject->text() : "serial " + serial),
                 "`ivy-agent certs` lists them"};
  }
  authority.revocation_list = IVY_TRY(signed_list(authority, now));
  if (authority.revocation_list.size() > kMaxRevocationBytes) {
    return Error{Code::kResourceExhausted, "the revocation list would be longer than 1 MiB",
                 "start a new CA: `ivy-agent ca init --ca DIR`"};
  }
  IVY_CHECK(write_files(authority.directory,
                        {index_file(authority), {"ca.crl", authority.revocation_list, 0644}}));
  return marked + revocation_advice(authority, now);
}

Result<std::string> list_certificates(const ListCertificatesArguments& arguments) {
  const Authority authority = IVY_TRY(open_authority(arguments.place));
  const std::int64_t now = arguments.place.now_unix_s;
  return "CA " + authority.facts.name + " in " + authority.directory + ", until " +
         certificate_date(authority.facts.not_after) + "\n" + index_table(authority.issued, now) +
         authority_warning(authority.facts, now);
}

}  // namespace ivy
