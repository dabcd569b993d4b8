#include "agent/daemon/certificate_issue.h"

#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/objects.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "proto/trust/libcrypto.h"

namespace ivy {
namespace {

constexpr int kSerialBytes = 16;
constexpr std::size_t kMaxSerialDigits = 40;  // 20 bytes: RFC 5280.
constexpr std::size_t kMaxCommonName = 64;    // ub-common-name of RFC 5280.

// The reason of libcrypto's failure, with the operation that failed.
Error crypto_error(const std::string& what) {
  const unsigned long code = ERR_peek_last_error();
  std::array<char, 256> text{};
  ERR_error_string_n(code, text.data(), text.size());
  ERR_clear_error();
  return Error{Code::kInternal,
               what + (code == 0 ? ": libcrypto failed" : ": " + std::string(text.data()))};
}

Result<void> need(int done, const char* what) {
  if (done == 1) return {};
  return crypto_error(what);
}

Result<Key> make_key() {
  Key key(EVP_EC_gen("P-256"));
  if (!key) return crypto_error("make a key");
  return key;
}

struct Authority {
  Key key;
  Certificate certificate;
};

Result<Certificate> read_authority_certificate(const std::string& pem) {
  Certificate certificate = read_pem_certificate(pem);
  ERR_clear_error();
  if (!certificate) {
    return Error{Code::kFailedPrecondition, "the CA's certificate is damaged",
                 "put back ca.crt from a copy"};
  }
  return certificate;
}

Result<Authority> read_authority(const KeyAndCertificate& texts) {
  Authority authority;
  authority.certificate = IVY_TRY(read_authority_certificate(texts.certificate_pem));
  authority.key = read_pem_key(texts.key_pem);
  ERR_clear_error();
  if (!authority.key) {
    return Error{Code::kFailedPrecondition, "the CA's key is damaged, or locked with a phrase",
                 "put back ca.key from a copy, without a phrase"};
  }
  if (X509_check_private_key(authority.certificate.get(), authority.key.get()) != 1) {
    ERR_clear_error();
    return Error{Code::kFailedPrecondition, "the CA's key and certificate do not belong together",
                 "put back ca.key and ca.crt from one copy"};
  }
  return authority;
}

Result<void> set_serial(X509* certificate) {
  std::array<unsigned char, kSerialBytes> bytes{};
  IVY_CHECK(need(RAND_bytes(bytes.data(), kSerialBytes), "draw a serial number"));
  bytes[0] |= 0x40;  // Never zero, and always the same number of digits.
  bytes[0] &= 0x7f;
  const BigNumber number(BN_bin2bn(bytes.data(), kSerialBytes, nullptr));
  if (!number || BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) == nullptr) {
    return crypto_error("set the serial number");
  }
  return {};
}

Result<Time> make_time(std::int64_t unix_s) {
  Time time(ASN1_TIME_set(nullptr, static_cast<std::time_t>(unix_s)));
  if (!time) return crypto_error("write a date");
  return time;
}

Result<void> set_common_name(X509* certificate, const std::string& name) {
  if (name.empty() || name.size() > kMaxCommonName) return {};
  return need(X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                                         reinterpret_cast<const unsigned char*>(name.data()),
                                         static_cast<int>(name.size()), -1, 0),
              "set the name");
}

// `value` is in OpenSSL's small language for extensions: no name may be put into it.
Result<void> add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_nconf_nid(nullptr, &context, nid, value.c_str()));
  if (!extension) return crypto_error("make an extension");
  return need(X509_add_ext(certificate, extension.get(), -1), "add an extension");
}

// Takes `value` over. Names do not go through add_extension(): they are texts from outside.
void add_name(GENERAL_NAMES* names, int type, ASN1_STRING* value) {
  GENERAL_NAME* const name = GENERAL_NAME_new();
  IVY_ASSERT(value != nullptr && name != nullptr);  // Fails only when memory runs out.
  GENERAL_NAME_set0_value(name, type, value);
  sk_GENERAL_NAME_push(names, name);
}

ASN1_STRING* ia5_text(const std::string& text) {
  ASN1_IA5STRING* const string = ASN1_IA5STRING_new();
  IVY_ASSERT(string != nullptr &&
             ASN1_STRING_set(string, text.data(), static_cast<int>(text.size())) == 1);
  return string;
}

Result<void> add_names(X509* certificate, const CertificateRequest& request) {
  const Names names(sk_GENERAL_NAME_new_null());
  for (const std::string& uri : request.uris) add_name(names.get(), GEN_URI, ia5_text(uri));
  for (const std::string& dns : request.dns_names) add_name(names.get(), GEN_DNS, ia5_text(dns));
  for (const std::string& address : request.addresses) {
    ASN1_OCTET_STRING* const octets = a2i_IPADDRESS(address.c_str());
    if (octets == nullptr) return crypto_error("\"" + address + "\" is not a numeric address");
    add_name(names.get(), GEN_IPADD, octets);
  }
  if (sk_GENERAL_NAME_num(names.get()) == 0) return {};
  // Without a subject the alternative names are all there is: RFC 5280, 4.1.2.6.
  const int critical = X509_NAME_entry_count(X509_get_subject_name(certificate)) == 0 ? 1 : 0;
  return need(X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), critical, 0),
              "add the names");
}

Result<void> add_usages(X509* certificate, const std::vector<std::string>& usages) {
  std::string text;
  for (const std::string& usage : usages) text += (text.empty() ? "" : ",") + usage;
  if (text.empty()) return {};
  return add_extension(certificate, nullptr, NID_ext_key_usage, text);
}

Result<Certificate> start_certificate(const Key& key, std::int64_t not_before,
                                      std::int64_t not_after) {
  Certificate certificate(X509_new());
  IVY_ASSERT(certificate != nullptr);
  IVY_CHECK(need(X509_set_version(certificate.get(), X509_VERSION_3), "set the version"));
  IVY_CHECK(set_serial(certificate.get()));
  if (ASN1_TIME_set(X509_getm_notBefore(certificate.get()), not_before) == nullptr ||
      ASN1_TIME_set(X509_getm_notAfter(certificate.get()), not_after) == nullptr)
    return crypto_error("set a date");
  IVY_CHECK(need(X509_set_pubkey(certificate.get(), key.get()), "set the key"));
  return certificate;
}

Result<KeyAndCertificate> signed_texts(const Key& key, X509* certificate, EVP_PKEY* signer) {
  if (X509_sign(certificate, signer, EVP_sha256()) <= 0) return crypto_error("sign a certificate");
  const Bio key_text(BIO_new(BIO_s_secmem()));
  const Bio certificate_text(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) !=
          1 ||
      PEM_write_bio_X509(certificate_text.get(), certificate) != 1)
    return crypto_error("write a certificate and its key");
  return KeyAndCertificate{take_text(key_text), take_text(certificate_text)};
}

Result<void> add_revoked(X509_CRL* list, const RevokedSerial& entry) {
  BIGNUM* digits = nullptr;
  const int read = BN_hex2bn(&digits, entry.serial.c_str());
  const BigNumber number(digits);
  if (read == 0) return crypto_error("read the serial " + entry.serial);
  const Integer serial(BN_to_ASN1_INTEGER(number.get(), nullptr));
  const Time at = IVY_TRY(make_time(entry.revoked_at));
  X509_REVOKED* const revoked = X509_REVOKED_new();
  IVY_ASSERT(revoked != nullptr && serial != nullptr);
  if (X509_REVOKED_set_serialNumber(revoked, serial.get()) != 1 ||
      X509_REVOKED_set_revocationDate(revoked, at.get()) != 1 ||
      X509_CRL_add0_revoked(list, revoked) != 1) {
    X509_REVOKED_free(revoked);
    return crypto_error("list a serial");
  }
  return {};
}

Result<void> add_list_extensions(X509_CRL* list, X509* authority, std::int64_t number) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, authority, nullptr, nullptr, list, 0);
  const Extension issuer(
      X509V3_EXT_nconf_nid(nullptr, &context, NID_authority_key_identifier, "keyid:always"));
  const Integer value(ASN1_INTEGER_new());
  const bool done = issuer && value && X509_CRL_add_ext(list, issuer.get(), -1) == 1 &&
                    ASN1_INTEGER_set_int64(value.get(), number) == 1 &&
                    X509_CRL_add1_ext_i2d(list, NID_crl_number, value.get(), 0, 0) == 1;
  return need(done ? 1 : 0, "add the list's extensions");
}

}  // namespace

Result<KeyAndCertificate> make_authority(const std::string& name, std::int64_t not_before,
                                         std::int64_t not_after) {
  const Key key = IVY_TRY(make_key());
  const Certificate certificate = IVY_TRY(start_certificate(key, not_before, not_after));
  X509* const self = certificate.get();
  IVY_CHECK(set_common_name(self, name));
  IVY_CHECK(need(X509_set_issuer_name(self, X509_get_subject_name(self)), "set the issuer's name"));
  IVY_CHECK(add_extension(self, self, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  IVY_CHECK(add_extension(self, self, NID_key_usage, "critical,keyCertSign,cRLSign"));
  IVY_CHECK(add_extension(self, self, NID_subject_key_identifier, "hash"));
  return signed_texts(key, self, key.get());
}

Result<KeyAndCertificate> issue_certificate(const KeyAndCertificate& authority_texts,
                                            const CertificateRequest& request) {
  const Authority authority = IVY_TRY(read_authority(authority_texts));
  const Key key = IVY_TRY(make_key());
  const Certificate certificate =
      IVY_TRY(start_certificate(key, request.not_before, request.not_after));
  X509* const leaf = certificate.get();
  X509* const ca = authority.certificate.get();
  IVY_CHECK(set_common_name(leaf, request.common_name));
  IVY_CHECK(need(X509_set_issuer_name(leaf, X509_get_subject_name(ca)), "set the issuer's name"));
  IVY_CHECK(add_extension(leaf, ca, NID_basic_constraints, "critical,CA:FALSE"));
  IVY_CHECK(add_extension(leaf, ca, NID_key_usage, "critical,digitalSignature"));
  IVY_CHECK(add_extension(leaf, ca, NID_subject_key_identifier, "hash"));
  IVY_CHECK(add_extension(leaf, ca, NID_authority_key_identifier, "keyid:always"));
  IVY_CHECK(add_usages(leaf, request.extended_usages));
  IVY_CHECK(add_names(leaf, request));
  return signed_texts(key, leaf, authority.key.get());
}

Result<std::string> sign_revocation_list(const KeyAndCertificate& authority_texts,
                                         const std::vector<RevokedSerial>& revoked,
                                         std::int64_t last_update, std::int64_t next_update,
                                         std::int64_t number) {
  const Authority authority = IVY_TRY(read_authority(authority_texts));
  const RevocationList list(X509_CRL_new());
  IVY_ASSERT(list != nullptr);
  IVY_CHECK(need(X509_CRL_set_version(list.get(), X509_CRL_VERSION_2), "set the version"));
  IVY_CHECK(
      need(X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(authority.certificate.get())),
           "set the issuer's name"));
  const Time last = IVY_TRY(make_time(last_update));
  const Time next = IVY_TRY(make_time(next_update));
  IVY_CHECK(need(X509_CRL_set1_lastUpdate(list.get(), last.get()), "set a date"));
  IVY_CHECK(need(X509_CRL_set1_nextUpdate(list.get(), next.get()), "set a date"));
  for (const RevokedSerial& entry : revoked) IVY_CHECK(add_revoked(list.get(), entry));
  IVY_CHECK(add_list_extensions(list.get(), authority.certificate.get(), number));
  X509_CRL_sort(list.get());
  if (X509_CRL_sign(list.get(), authority.key.get(), EVP_sha256()) <= 0) {
    return crypto_error("sign the revocation list");
  }
  const Bio bio(BIO_new(BIO_s_mem()));
  if (!bio || PEM_write_bio_X509_CRL(bio.get(), list.get()) != 1) {
    return crypto_error("write the revocation list");
  }
  return take_text(bio);
}

Result<AuthorityFacts> authority_facts(const std::string& certificate_pem) {
  const Certificate certificate = IVY_TRY(read_authority_certificate(certificate_pem));
  AuthorityFacts facts;
  facts.name = name_of(X509_get_subject_name(certificate.get()));
  if (facts.name.starts_with("CN=")) facts.name.erase(0, 3);
  facts.not_after = unix_time(X509_get0_notAfter(certificate.get()));
  return facts;
}

Result<std::string> canonical_serial(const std::string& typed) {
  std::string digits;
  bool is_hex = true;
  for (const char c : typed) {
    if (c == ':') continue;
    is_hex = is_hex && std::isxdigit(static_cast<unsigned char>(c)) != 0;
    digits += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (!is_hex || digits.empty() || digits.size() > kMaxSerialDigits) {
    return Error{Code::kInvalidArgument, "\"" + typed + "\" is no serial number",
                 "`ivy-agent certs` lists them: hexadecimal, at most 40 digits"};
  }
  return digits.size() % 2 == 0 ? digits : "0" + digits;
}

}  // namespace ivy
