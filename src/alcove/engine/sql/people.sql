-- What the store holds about a person. `{personal_versions}` is a part in `sqlite.sql` and `postgres.sql`.

-- name: rooms_of_person
-- A person's data: one row for each room of theirs, and one for each room of others that they wrote to.
WITH {personal_versions}
SELECT own, ns, count(*) FILTER (WHERE ended_at IS NULL AND (expires_at IS NULL OR expires_at > :now)), count(*),
       coalesce(sum(length(sealed)), 0), min(coalesce(original_at, created_at)), max(coalesce(original_at, created_at))
FROM personal JOIN versions USING (seq) GROUP BY own, ns ORDER BY own DESC, ns

-- name: versions_of_person
-- The versions of a person in the order of the log, and whether each is the current one of its key.
WITH {personal_versions}
SELECT seq, current FROM (
    SELECT seq, ended_at IS NULL AND (expires_at IS NULL OR expires_at > :now) AS current
    FROM personal JOIN versions USING (seq) WHERE seq > :after AND (id = :id OR :id IS NULL)) found
WHERE current OR NOT :live ORDER BY seq

-- name: keys_in_older_rooms
-- The keys of older rooms that a person wrote to, how much of them is live, and whether they are the only author.
WITH {personal_versions}
SELECT v.ns, v.key, count(*) FILTER (WHERE ended_at IS NULL AND (expires_at IS NULL OR expires_at > :now)),
       CAST(sum((SELECT count(*) FROM vectors x WHERE x.ns = v.ns AND x.seq = v.seq)) AS BIGINT),
       count(sealed) = (
           SELECT count(sealed) FROM versions a WHERE a.ns = v.ns AND a.key = v.key AND a.seq <= :until)
FROM personal JOIN versions v USING (seq) WHERE own AND v.owner IS NULL AND seq <= :until
GROUP BY v.ns, v.key

-- name: authored
-- What a person wrote into rooms that do not belong to them alone.
WITH {personal_versions}
SELECT seq, ns, key, revision, owner, '{}', ended_at IS NULL, sealed IS NOT NULL, "user" IS NOT NULL, own
FROM personal JOIN versions USING (seq) WHERE (NOT own OR owner IS NULL) AND seq <= :until
