// SPDX-License-Identifier: Apache-2.0
// In this order: PEM text to certificates and revocation lists; a certificate's names, role and
// usage (identity_of()); the CA with its revocation lists (ParsedAnchor); and the functions of the
// header, which verify a chain and then read the identity of its leaf.
#include "proto/trust/agent_certificate.h"

#include <arpa/inet.h>
#include <openssl/err.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>
#include <memory>
#include <optional>

#include "proto/contract/text.h"
#include "proto/os/socket_address.h"
#include "proto/trust/libcrypto.h"

namespace ivy {
namespace {

// The CA signs leaves directly; eight leave room for certificates that some tools append.
constexpr std::size_t kMaxCertificates = 8;
constexpr std::size_t kMaxRevocationLists = 8;
constexpr std::size_t kMaxHostName = 253;  // Limit of RFC 1035.
constexpr std::size_t kMaxUserName = 32;   // Limit of useradd.
constexpr std::size_t kMaxShown = 120;     // Bytes of an untrusted name shown in a message.
constexpr int kSecurityBits112 = 2;        // OpenSSL's level 2: no SHA-1, no RSA below 2048 bits.

constexpr std::string_view kHostUri = "ivy://host/";
constexpr std::string_view kUserUri = "ivy://user/";
constexpr std::string_view kServesUri = "ivy://serves/";

using Store = std::unique_ptr<X509_STORE, Free<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Free<X509_STORE_CTX_free>>;
struct FreeStack {
  void operator()(STACK_OF(X509) * stack) const { sk_X509_free(stack); }
};
// A stack that does not own its certificates.
using BorrowedCertificates = std::unique_ptr<STACK_OF(X509), FreeStack>;

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool is_letter_or_digit(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Escapes untrusted text for one line of a message.
std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte >= 0x7f ? '?' : c;
  }
  return text.size() > kMaxShown ? out + "..." : out;
}

// Returns the PEM blocks at the start of a text, each from BEGIN to END. Text before a block is an
// error, because a person could take it for signed content.
Result<std::vector<std::string_view>> pem_blocks(std::string_view text, const std::string& what,
                                                 std::string_view label, std::size_t max_blocks) {
  const std::string begin = "-----BEGIN " + std::string(label) + "-----";
  const std::string end = "-----END " + std::string(label) + "-----";
  std::vector<std::string_view> blocks;
  std::size_t at = 0;
  while (true) {
    while (at < text.size() && is_space(text[at])) ++at;
    if (!text.substr(at).starts_with(begin)) break;
    const std::size_t last = text.find(end, at);
    if (last == std::string_view::npos) {
      return Error{
          Code::kInvalidArgument,
          what + " is truncated: no line \"" + end + "\" after line " +
              std::to_string(
                  std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n') +
                  1)};
    }
    if (blocks.size() == max_blocks) {
      return Error{Code::kInvalidArgument, what + " has more than " + std::to_string(max_blocks) +
                                               " blocks \"" + begin + "\""};
    }
    blocks.push_back(text.substr(at, last + end.size() - at));
    at = last + end.size();
  }
  if (text.find(begin, at) != std::string_view::npos) {
    return Error{Code::kInvalidArgument, what + " has unexpected text before \"" + begin + "\"",
                 "keep only the lines from BEGIN to END"};
  }
  return blocks;
}

Error empty_or_other(const std::string& what, std::string_view text, std::string_view label) {
  const bool blank = std::all_of(text.begin(), text.end(), is_space);
  return Error{Code::kInvalidArgument,
               what + (blank ? " is empty"
                             : " is not PEM text that starts with \"-----BEGIN " +
                                   std::string(label) + "-----\"")};
}

Error damaged(const std::string& what, std::string_view text, std::string_view block) {
  const auto begin = text.begin();
  const auto first = std::count(begin, begin + (block.data() - text.data()), '\n') + 1;
  const auto last = first + std::count(block.begin(), block.end(), '\n');
  return Error{Code::kInvalidArgument, what + " is damaged: the text between lines " +
                                           std::to_string(first) + " and " + std::to_string(last) +
                                           " cannot be decoded"};
}

Result<std::vector<Certificate>> parse_certificates(std::string_view pem, const std::string& what) {
  if (pem.size() > kMaxCertificateBytes) {
    return Error{Code::kInvalidArgument, what + " is longer than 64 KiB"};
  }
  std::vector<Certificate> certificates;
  for (const std::string_view block :
       IVY_TRY(pem_blocks(pem, what, "CERTIFICATE", kMaxCertificates))) {
    certificates.push_back(read_pem_certificate(block));
    ERR_clear_error();
    if (!certificates.back()) return damaged(what, pem, block);
  }
  if (certificates.empty()) return empty_or_other(what, pem, "CERTIFICATE");
  return certificates;
}

Result<std::vector<RevocationList>> parse_revocation_lists(std::string_view pem) {
  const std::string what = "the revocation list";
  if (pem.size() > kMaxRevocationBytes) {
    return Error{Code::kInvalidArgument, what + " is longer than 1 MiB"};
  }
  std::vector<RevocationList> lists;
  for (const std::string_view block :
       IVY_TRY(pem_blocks(pem, what, "X509 CRL", kMaxRevocationLists))) {
    lists.emplace_back(PEM_read_bio_X509_CRL(memory_of(block).get(), nullptr, nullptr, nullptr));
    ERR_clear_error();
    if (!lists.back()) return damaged(what, pem, block);
  }
  const bool blank = std::all_of(pem.begin(), pem.end(), is_space);
  // An error is better than a list that silently means "nothing is revoked".
  if (lists.empty() && !blank) return empty_or_other(what, pem, "X509 CRL");
  return lists;
}

std::string time_text(std::int64_t unix_s) {
  const auto seconds = static_cast<std::time_t>(unix_s);
  std::tm parts{};
  std::array<char, 64> text{};
  if (gmtime_r(&seconds, &parts) == nullptr) return "?";
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &parts);
  return text.data();
}

std::string serial_of(const X509* certificate) {
  const BigNumber number(ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), nullptr));
  char* const digits = number ? BN_bn2hex(number.get()) : nullptr;
  if (digits == nullptr) return "?";
  const std::string serial = lower_case(digits);
  OPENSSL_free(digits);
  return serial;
}

std::string name_text(const X509_NAME* name) {
  const std::string text = name_of(name);
  return text.empty() ? "(no name)" : printable(text);
}

std::string_view bytes_of(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<std::size_t>(ASN1_STRING_length(text))};
}

std::string address_text(std::string_view bytes) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int family = bytes.size() == sizeof(in_addr) ? AF_INET : AF_INET6;
  if (bytes.size() != sizeof(in_addr) && bytes.size() != sizeof(in6_addr)) return {};
  if (inet_ntop(family, bytes.data(), text.data(), text.size()) == nullptr) return {};
  return canonical_address(text.data());
}

// The names of roles in a certificate, not checked yet.
struct RoleNames {
  std::vector<std::string> hosts;
  std::vector<std::string> users;
  std::vector<std::string> serves;
  std::string unknown;  // An ivy:// URI of another kind.
};

void add_uri(std::string_view uri, RoleNames& roles) {
  if (uri.starts_with(kHostUri)) {
    roles.hosts.emplace_back(uri.substr(kHostUri.size()));
  } else if (uri.starts_with(kUserUri)) {
    roles.users.emplace_back(uri.substr(kUserUri.size()));
  } else if (uri.starts_with(kServesUri)) {
    roles.serves.emplace_back(uri.substr(kServesUri.size()));
  } else if (lower_case(uri).starts_with("ivy:")) {
    roles.unknown = printable(uri);
  }
}

Result<RoleNames> read_names(X509* certificate, CertificateIdentity& identity) {
  RoleNames roles;
  int critical = -1;
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, &critical, nullptr)));
  ERR_clear_error();
  // -1 means that there is none; otherwise it is damaged, or there are several.
  if (!names && critical != -1) {
    return Error{Code::kInvalidArgument, "its alternative names are damaged"};
  }
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_URI) {
      add_uri(bytes_of(name->d.uniformResourceIdentifier), roles);
    } else if (name->type == GEN_DNS) {
      const std::string dns = lower_case(bytes_of(name->d.dNSName));
      if (check_certificate_name(CertificateRole::kHost, dns)) identity.dns_names.push_back(dns);
    } else if (name->type == GEN_IPADD) {
      const std::string address = address_text(bytes_of(name->d.iPAddress));
      if (!address.empty()) identity.addresses.push_back(address);
    }
  }
  return roles;
}

// Requires exactly one role, whose name is safe to show and to compare.
Result<void> read_role(const RoleNames& roles, CertificateIdentity& identity) {
  if (!roles.unknown.empty()) {
    return Error{Code::kInvalidArgument, "it has an unknown role \"" + roles.unknown + "\""};
  }
  if (roles.hosts.empty() && roles.users.empty()) {
    return Error{Code::kInvalidArgument,
                 "it has no role (no name ivy://host/... or ivy://user/...), so it was not made by "
                 "`ivy-agent cert`"};
  }
  if (roles.hosts.size() + roles.users.size() > 1 || roles.serves.size() > 1) {
    return Error{Code::kInvalidArgument,
                 "it has more than one role: a certificate is for one host "
                 "or one user"};
  }
  identity.role = roles.users.empty() ? CertificateRole::kHost : CertificateRole::kUser;
  identity.name = roles.users.empty() ? roles.hosts.front() : roles.users.front();
  IVY_CHECK(check_certificate_name(identity.role, identity.name));
  if (roles.serves.empty()) return {};
  if (identity.role == CertificateRole::kUser) {
    return Error{Code::kInvalidArgument,
                 "it has more than one role: a user's certificate cannot serve"};
  }
  identity.serves = roles.serves.front();
  return check_certificate_name(CertificateRole::kUser, identity.serves);
}

std::string role_text(CertificateRole role) {
  return role == CertificateRole::kHost ? "host" : "user";
}

Result<void> check_usage(X509* certificate, CertificateRole role) {
  const bool is_host = role == CertificateRole::kHost;
  const std::uint32_t usage = X509_get_extended_key_usage(certificate);
  const std::uint32_t wanted = is_host ? XKU_SSL_SERVER : XKU_SSL_CLIENT;
  const std::uint32_t forbidden = (is_host ? XKU_SSL_CLIENT : XKU_SSL_SERVER) | XKU_ANYEKU;
  // UINT32_MAX means that there is no such extension, so the certificate could be used for
  // anything.
  if (usage == UINT32_MAX || (usage & wanted) == 0 || (usage & forbidden) != 0) {
    return Error{Code::kInvalidArgument, "its extended key usage does not match its role of " +
                                             role_text(role) + ", which needs only " +
                                             (is_host ? "serverAuth" : "clientAuth")};
  }
  const int purpose = is_host ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT;
  if (X509_check_ca(certificate) != 0) {
    return Error{Code::kInvalidArgument,
                 "it is a CA's certificate, not the certificate of a " + role_text(role)};
  }
  if (X509_check_purpose(certificate, purpose, 0) != 1) {
    return Error{Code::kInvalidArgument, "its key usage does not allow TLS"};
  }
  return {};
}

CertificateIdentity facts_of(const X509* certificate) {
  CertificateIdentity identity;
  identity.serial = serial_of(certificate);
  identity.not_before = unix_time(X509_get0_notBefore(certificate));
  identity.not_after = unix_time(X509_get0_notAfter(certificate));
  return identity;
}

Result<CertificateIdentity> identity_of(X509* certificate) {
  CertificateIdentity identity = facts_of(certificate);
  const RoleNames roles = IVY_TRY(read_names(certificate, identity));
  IVY_CHECK(read_role(roles, identity));
  IVY_CHECK(check_usage(certificate, identity.role));
  return identity;
}

// Returns a text such as "certificate user/alice (serial 4f02)", whether or not the certificate is
// trusted.
std::string title_of(X509* certificate) {
  CertificateIdentity identity = facts_of(certificate);
  const Result<RoleNames> roles = read_names(certificate, identity);
  const bool has_role = roles.ok() && read_role(*roles, identity).ok();
  const std::string name = has_role ? role_text(identity.role) + "/" + identity.name
                                    : name_text(X509_get_subject_name(certificate));
  return "certificate " + name + " (serial " + printable(identity.serial) + ")";
}

}  // namespace

struct ParsedAnchor {
  std::vector<Certificate> authorities;
  std::vector<RevocationList> lists;
  Store store;  // Both of the above, for OpenSSL, which locks it as needed.
};

namespace {

bool is_signed_by(X509_CRL* list, X509* authority) {
  if (X509_NAME_cmp(X509_CRL_get_issuer(list), X509_get_subject_name(authority)) != 0) return false;
  EVP_PKEY* const key = X509_get0_pubkey(authority);
  const bool is_signed = key != nullptr && X509_CRL_verify(list, key) == 1;
  ERR_clear_error();
  return is_signed;
}

Result<void> check_lists(const ParsedAnchor& anchor) {
  for (const RevocationList& list : anchor.lists) {
    if (std::none_of(anchor.authorities.begin(), anchor.authorities.end(),
                     [&](const Certificate& ca) { return is_signed_by(list.get(), ca.get()); })) {
      return Error{Code::kFailedPrecondition,
                   "the revocation list of " + name_text(X509_CRL_get_issuer(list.get())) +
                       " is not signed by the CA",
                   "copy ca.crt and ca.crl together from the directory of the CA"};
    }
  }
  return {};
}

Store store_of(const ParsedAnchor& anchor) {
  Store store(X509_STORE_new());
  IVY_ASSERT(store != nullptr);
  for (const Certificate& ca : anchor.authorities) X509_STORE_add_cert(store.get(), ca.get());
  for (const RevocationList& list : anchor.lists) X509_STORE_add_crl(store.get(), list.get());
  ERR_clear_error();
  return store;
}

Result<std::shared_ptr<const ParsedAnchor>> read_anchor(const TrustAnchor& texts) {
  if (texts.parsed) return texts.parsed;
  ParsedAnchor anchor;
  Result<std::vector<Certificate>> authorities = parse_certificates(texts.ca_pem, "the CA");
  Result<std::vector<RevocationList>> lists = parse_revocation_lists(texts.crl_pem);
  for (const Error* error :
       {authorities.ok() ? nullptr : &authorities.error(), lists.ok() ? nullptr : &lists.error()}) {
    if (error != nullptr) return Error{Code::kFailedPrecondition, error->message, error->fix};
  }
  anchor.authorities = std::move(authorities).value();
  anchor.lists = std::move(lists).value();
  IVY_CHECK(check_lists(anchor));
  anchor.store = store_of(anchor);
  return std::make_shared<const ParsedAnchor>(std::move(anchor));
}

std::string not_yet_valid(const X509* certificate, std::int64_t now_unix_s) {
  return "is not valid before " + time_text(unix_time(X509_get0_notBefore(certificate))) +
         ", and it is " + time_text(now_unix_s) + " here: check the clocks of both hosts";
}

std::string expired(const X509* certificate, std::int64_t now_unix_s) {
  return expiry_warning(unix_time(X509_get0_notAfter(certificate)), now_unix_s);
}

Error chain_error(X509_STORE_CTX* context, X509* leaf, std::int64_t now_unix_s) {
  const int code = X509_STORE_CTX_get_error(context);
  X509* const at = X509_STORE_CTX_get_current_cert(context);
  const bool is_leaf = at == nullptr || X509_STORE_CTX_get_error_depth(context) == 0;
  const std::string subject =
      is_leaf ? title_of(leaf) : title_of(leaf) + ": its CA " + title_of(at);
  const X509* const dated = is_leaf ? leaf : at;
  switch (code) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return Error{Code::kUnauthenticated, subject + " " + expired(dated, now_unix_s),
                   "renew it: `ivy-agent renew` on the host with the CA"};
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return Error{Code::kUnauthenticated, subject + " " + not_yet_valid(dated, now_unix_s)};
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_CERT_CHAIN_TOO_LONG:
      return Error{Code::kUnauthenticated,
                   title_of(leaf) + " is not signed by this CA (its issuer is " +
                       name_text(X509_get_issuer_name(leaf)) + ")",
                   "both sides need certificates of the same CA: compare ca.crt on both"};
    default:
      return Error{Code::kUnauthenticated,
                   subject + " is not valid: " + X509_verify_cert_error_string(code)};
  }
}

Error revocation_error(X509_STORE_CTX* context, X509* leaf) {
  const int code = X509_STORE_CTX_get_error(context);
  switch (code) {
    case X509_V_ERR_CERT_REVOKED:
      return Error{Code::kPermissionDenied, title_of(leaf) + " has been revoked",
                   "make a new one on the host with the CA: `ivy-agent cert`"};
    case X509_V_ERR_UNABLE_TO_GET_CRL:
    case X509_V_ERR_UNABLE_TO_GET_CRL_ISSUER:
      return Error{Code::kFailedPrecondition,
                   title_of(leaf) + ": there are revocation lists, but none for its CA " +
                       name_text(X509_get_issuer_name(leaf)),
                   "append that CA's ca.crl to the others"};
    case X509_V_ERR_CRL_HAS_EXPIRED:
    case X509_V_ERR_CRL_NOT_YET_VALID:
      return Error{Code::kFailedPrecondition,
                   title_of(leaf) + ": the revocation list of its CA is not valid now (" +
                       X509_verify_cert_error_string(code) + ")",
                   "copy ca.crl again from the directory of the CA"};
    default:
      return Error{Code::kFailedPrecondition, title_of(leaf) + ": the revocation list: " +
                                                  X509_verify_cert_error_string(code)};
  }
}

// Verifies the chain once with OpenSSL. Returns nothing if the chain is trusted.
template <class ErrorOf>
std::optional<Error> verify_chain(const ParsedAnchor& anchor, const std::vector<Certificate>& chain,
                                  std::int64_t now_unix_s, unsigned long flags,
                                  const ErrorOf& error_of) {
  const StoreContext context(X509_STORE_CTX_new());
  const BorrowedCertificates others(sk_X509_new_null());
  IVY_ASSERT(context != nullptr && others != nullptr);
  for (std::size_t i = 1; i < chain.size(); ++i) sk_X509_push(others.get(), chain[i].get());
  X509* const leaf = chain.front().get();
  if (X509_STORE_CTX_init(context.get(), anchor.store.get(), leaf, others.get()) != 1) {
    return Error{Code::kInternal, "cannot check certificates: out of memory"};
  }
  X509_VERIFY_PARAM* const rules = X509_STORE_CTX_get0_param(context.get());
  X509_VERIFY_PARAM_set_time(rules, static_cast<std::time_t>(now_unix_s));
  X509_VERIFY_PARAM_set_flags(rules, flags);
  X509_VERIFY_PARAM_set_depth(rules, 0);  // Allow nothing between the leaf and the anchor.
  X509_VERIFY_PARAM_set_auth_level(rules, kSecurityBits112);
  const bool believed = X509_verify_cert(context.get()) == 1;
  std::optional<Error> error;
  if (!believed) error = error_of(context.get(), leaf);
  ERR_clear_error();
  return error;
}

Result<void> check_wanted(const CertificateIdentity& identity, CertificateRole wanted) {
  if (identity.role == wanted) return {};
  const bool is_host = identity.role == CertificateRole::kHost;
  return Error{Code::kPermissionDenied,
               is_host ? "is a host's certificate: it cannot launch jobs"
                       : "is a user's certificate: it cannot serve",
               is_host ? "make one for the user: `ivy-agent cert --user NAME`"
                       : "make one for the host: `ivy-agent cert HOST --serves USER`"};
}

std::string list_names(const CertificateIdentity& identity) {
  std::string list;
  for (const std::vector<std::string>* names : {&identity.dns_names, &identity.addresses})
    for (const std::string& name : *names) list += (list.empty() ? "" : ", ") + name;
  return list.empty() ? "none" : list;
}

// Returns the command that makes this host's certificate again with one more name. It lists all
// names, because omitted names would be lost.
std::string cert_command_with(const CertificateIdentity& identity, const std::string& name) {
  std::string command = "ivy-agent cert " + identity.name;
  for (const std::vector<std::string>* names : {&identity.dns_names, &identity.addresses})
    for (const std::string& kept : *names)
      if (kept != lower_case(identity.name)) command += " " + kept;
  command += " " + name;
  return command + (identity.serves.empty() ? " --serves-any" : " --serves " + identity.serves);
}

}  // namespace

Result<void> check_certificate_name(CertificateRole role, std::string_view name) {
  const bool is_host = role == CertificateRole::kHost;
  const std::string_view marks = is_host ? "._:-" : "._-";
  const std::size_t max_size = is_host ? kMaxHostName : kMaxUserName;
  const bool fits = !name.empty() && name.size() <= max_size &&
                    std::all_of(name.begin(), name.end(), [&](char c) {
                      return is_letter_or_digit(c) || marks.find(c) != std::string_view::npos;
                    });
  // A leading dash would make an option, a leading dot a hidden file or a parent directory.
  const bool has_valid_start =
      fits && name.front() != '-' && name.front() != '.' &&
      (is_host || std::isdigit(static_cast<unsigned char>(name.front())) == 0) &&
      name.find("..") == std::string_view::npos;
  if (has_valid_start) return {};
  return Error{
      Code::kInvalidArgument,
      "\"" + printable(name) + "\" cannot be the name of a " + role_text(role) +
          " in a certificate",
      is_host
          ? "use letters, digits and . _ : - (at most 253), without a leading dash or dot"
          : "use the name of an account: letters, digits and . _ - (at most 32), without a leading "
            "digit, dash or dot"};
}

Result<CertificateIdentity> read_certificate(std::string_view pem) {
  const std::vector<Certificate> chain = IVY_TRY(parse_certificates(pem, "the certificate"));
  Result<CertificateIdentity> identity = identity_of(chain.front().get());
  if (!identity) return identity.error().context(title_of(chain.front().get()));
  return identity;
}

Result<void> prepare_anchor(TrustAnchor& anchor) {
  anchor.parsed.reset();
  anchor.parsed = IVY_TRY(read_anchor(anchor));
  return {};
}

Result<CertificateIdentity> verify_certificate(std::string_view chain_pem, const TrustAnchor& texts,
                                               CertificateRole wanted, std::int64_t now_unix_s) {
  const std::shared_ptr<const ParsedAnchor> anchor = IVY_TRY(read_anchor(texts));
  const Result<std::vector<Certificate>> chain = parse_certificates(chain_pem, "the certificate");
  if (!chain) return Error{Code::kUnauthenticated, chain.error().message, chain.error().fix};
  // One full verification accepts nearly every peer. If it fails, verify step by step to find the
  // first reason.
  const auto no_reason = [](X509_STORE_CTX*, X509*) { return Error{}; };
  const bool is_believed = !verify_chain(
      *anchor, *chain, now_unix_s, anchor->lists.empty() ? 0 : X509_V_FLAG_CRL_CHECK, no_reason);
  const auto date_and_signature = [now_unix_s](X509_STORE_CTX* context, X509* leaf) {
    return chain_error(context, leaf, now_unix_s);
  };
  if (!is_believed) {
    if (std::optional<Error> error =
            verify_chain(*anchor, *chain, now_unix_s, 0, date_and_signature)) {
      return *std::move(error);
    }
  }
  X509* const leaf = chain->front().get();
  Result<CertificateIdentity> identity = identity_of(leaf);
  if (!identity) {
    return Error{Code::kPermissionDenied, title_of(leaf) + ": " + identity.error().message,
                 identity.error().fix};
  }
  if (!is_believed) {
    if (std::optional<Error> error =
            verify_chain(*anchor, *chain, now_unix_s, X509_V_FLAG_CRL_CHECK, revocation_error)) {
      return *std::move(error);
    }
  }
  if (const Result<void> role = check_wanted(*identity, wanted); !role) {
    return Error{role.error().code, title_of(leaf) + " " + role.error().message, role.error().fix};
  }
  return identity;
}

std::string canonical_address(std::string_view text) {
  if (text.size() > 2 && text.front() == '[' && text.back() == ']') {
    text = text.substr(1, text.size() - 2);
  }
  if (text.find(':') != std::string_view::npos) text = text.substr(0, text.find('%'));
  const SocketAddress parsed = parse_address(std::string(text), 0);
  return parsed.is_valid() ? host_text(parsed.storage) : std::string();
}

Result<void> check_host_name(const CertificateIdentity& identity, std::string_view host_name) {
  const std::string address = canonical_address(host_name);
  // A trailing dot (the DNS root) does not change a name.
  const std::string_view name =
      host_name.ends_with('.') ? host_name.substr(0, host_name.size() - 1) : host_name;
  const std::vector<std::string>& names = address.empty() ? identity.dns_names : identity.addresses;
  const std::string wanted = address.empty() ? lower_case(name) : address;
  if (std::find(names.begin(), names.end(), wanted) != names.end()) return {};
  return Error{Code::kPermissionDenied,
               "certificate " + role_text(identity.role) + "/" + identity.name + " is not for \"" +
                   printable(host_name) + "\"; its names: " + list_names(identity),
               "use one of these names for the host, or make its certificate again with `" +
                   cert_command_with(identity, printable(host_name)) + "`"};
}

std::string certificate_date(std::int64_t unix_s) { return time_text(unix_s).substr(0, 10); }

std::string expiry_warning(std::int64_t not_after, std::int64_t now_unix_s, int warn_days) {
  constexpr std::int64_t kMinute = 60;
  constexpr std::int64_t kHour = 60 * kMinute;
  constexpr std::int64_t kDay = 24 * kHour;
  const std::int64_t left = not_after - now_unix_s;
  if (left > warn_days * kDay) return {};
  const std::int64_t apart = left < 0 ? -left : left;
  const auto [unit, name] = apart >= 2 * kDay    ? std::pair{kDay, "days"}
                            : apart >= 2 * kHour ? std::pair{kHour, "hours"}
                                                 : std::pair{kMinute, "minutes"};
  const std::string count =
      apart < 2 * kMinute ? "a moment" : std::to_string(apart / unit) + " " + name;
  // If hours are shown, the date alone is not precise enough.
  const std::string date = unit == kDay ? certificate_date(not_after) : time_text(not_after);
  return (left < 0 ? "expired " + count + " ago (" : "expires in " + count + " (") + date + ")";
}

}  // namespace ivy
