"""Mending what follows from other columns: which body is of which unit, numbers, ids."""

from __future__ import annotations

from checks.cherry_v2 import findings as v2
from regraft.language import tr
from repair.cherry_v2.rules.workbench import DERIVED, Job

_BODILESS = "NOT EXISTS (SELECT 1 FROM temp.m_body b WHERE b.unit = m_unit.rid)"
#: A unit whose material, text or body is not known: its id may still tell what was there.
_IN_DOUBT = f"""({_BODILESS} OR NOT EXISTS (SELECT 1 FROM temp.m_material m WHERE m.id = m_unit.material
       AND (m.content IS NULL OR ifnull(m.new_content, m.content) IS m_unit.content))
   OR NOT EXISTS (SELECT 1 FROM temp.m_known k WHERE k.key = m_unit.content))"""
_BODY_KEY = "CAST({} || ' ' || {} || ' ' || kind AS BLOB)"


def link_bodies(job: Job) -> None:
    """Find the units of bodies that name none, for units without a body.

    Such a body names the id that the unit has by its fields, with the number that it had or the one that it has now, or
    its own id follows from one of the unit's.
    """
    if not job.wants(v2.NO_BODY):
        return
    db = job.db
    for table in ("m_lost", "m_stray"):
        db.execute(f"DROP TABLE IF EXISTS temp.{table}")
    was_derived = DERIVED.replace("idx", "was_idx")
    db.execute(
        f"CREATE TEMP TABLE m_lost AS SELECT rid, id, {was_derived} AS was_derived, {DERIVED} AS derived"
        f" FROM temp.m_unit WHERE {_BODILESS}"
    )
    db.execute("CREATE TEMP TABLE m_stray AS SELECT rid, id, target FROM temp.m_body WHERE unit IS NULL")
    db.execute("CREATE INDEX temp.m_stray_id ON m_stray (id)")
    db.execute("CREATE INDEX temp.m_stray_target ON m_stray (target)")
    body_id = "sha256_hex(CAST('search_unit ' || {} || ' body' AS BLOB))"
    keys = ("l.id", "l.was_derived", "l.derived")
    for proof in (*(f"s.target = {key}" for key in keys), *(f"s.id = {body_id.format(key)}" for key in keys)):
        pairs = f"""SELECT min(s.rid) AS body, l.rid AS unit FROM temp.m_lost l CROSS JOIN temp.m_stray s ON {proof}
             WHERE NOT EXISTS (SELECT 1 FROM temp.m_body b WHERE b.unit = l.rid) GROUP BY l.rid"""
        job.change(
            "link-bodies",
            f"""UPDATE temp.m_body SET unit = p.unit, type = 'search_unit', kind = 'body', linked = TRUE
                  FROM ({pairs}) p WHERE p.body = m_body.rid AND m_body.unit IS NULL""",
        )


def link_contents(job: Job) -> None:
    """Give materials with units and without a content the one that their units agree on."""
    if not job.wants(v2.NO_CONTENT):
        return
    known = "SELECT 1 FROM temp.m_known k WHERE k.key = ifnull(m_material.new_content, m_material.content)"
    units = """SELECT {} FROM temp.m_unit u LEFT JOIN temp.m_known k ON k.key = u.content
         WHERE u.material = m_material.id"""
    bare = f"NOT EXISTS ({known}) AND EXISTS ({units.format(1)})"
    agreed = units.format("count(DISTINCT u.content) = 1 AND count(*) = count(k.key)")
    job.change(
        "link-contents",
        f"UPDATE temp.m_material SET new_content = ({units.format('min(u.content)')}) WHERE {bare} AND ({agreed})",
    )
    left = job.count(f"SELECT count(*) FROM temp.m_material WHERE {bare}")
    job.leave(v2.NO_CONTENT, tr("its units do not agree on a text that is there"), left)


def order_units(job: Job) -> None:
    """Number the units of a material from 0, in their order.

    That is the order of their numbers; where the id of a unit shows that its number may be wrong, it is the order of
    their places in the text, as far as these are mended.
    """
    if not job.wants(v2.UNIT_GAP):
        return
    db = job.db
    db.execute("DROP TABLE IF EXISTS temp.m_gap")
    db.execute(
        "CREATE TEMP TABLE m_gap AS SELECT material,"
        " min(follows) = 0 AND count(DISTINCT content) = 1 AND min(typeof(char_start) = 'integer') AS by_place,"
        " min(typeof(was_idx) = 'integer') AS by_number FROM temp.m_unit GROUP BY material"
        " HAVING min(was_idx) IS NOT 0 OR max(was_idx) IS NOT count(*) - 1 OR count(DISTINCT was_idx) <> count(*)"
    )
    # The id of a unit whose material is gone may still tell what that was.
    db.execute(
        "UPDATE temp.m_gap SET by_place = FALSE, by_number = FALSE"
        " WHERE NOT EXISTS (SELECT 1 FROM temp.m_material m WHERE m.id = m_gap.material)"
    )
    ordered = (
        "SELECT u.rid, row_number() OVER (PARTITION BY u.material ORDER BY CASE WHEN g.by_place THEN u.char_start"
        " ELSE u.was_idx END, u.was_idx, u.rid) - 1 AS number FROM temp.m_gap g CROSS JOIN temp.m_unit u"
        " ON u.material = g.material WHERE g.by_place OR g.by_number"
    )
    db.execute(
        f"UPDATE temp.m_unit SET idx = o.number, touched = TRUE FROM ({ordered}) o"
        " WHERE o.rid = m_unit.rid AND o.number IS NOT m_unit.idx"
    )


def number_units(job: Job) -> None:
    """Number the units of materials whose numbers have gaps, and say where nothing tells their order."""
    if not job.wants(v2.UNIT_GAP):
        return
    order_units(job)
    job.done["number-units"] += job.count("SELECT count(*) FROM temp.m_unit WHERE idx IS NOT was_idx")
    left = job.count("SELECT count(*) FROM temp.m_gap WHERE NOT (by_place OR by_number)")
    job.leave(v2.UNIT_GAP, tr("neither numbers nor places tell the order of its units, or it is gone"), left)


def rekey_units(job: Job) -> None:
    """Give units the ids that follow from their fields."""
    wanted = job.wants(v2.UNIT_ID)
    job.change(
        "rekey-units",
        f"UPDATE temp.m_unit SET new_id = {DERIVED} WHERE {DERIVED} IS NOT id AND {DERIVED} IS NOT NULL"
        f" AND ((touched AND NOT {_BODILESS}) OR ({int(wanted)} AND NOT {_IN_DOUBT}))",
    )
    if wanted or job.count("SELECT max(touched) FROM temp.m_unit"):
        left = job.count(f"SELECT count(*) FROM temp.m_unit WHERE new_id IS NULL AND {DERIVED} IS NOT id")
        job.leave(v2.UNIT_ID, tr("its material, text or body is not known, and its id may still tell"), left)


def rekey_bodies(job: Job) -> None:
    """Have bodies name their units as these are called now, and give them the ids that follow."""
    db = job.db
    db.execute(
        "UPDATE temp.m_body SET new_target = u.name FROM (SELECT rid, ifnull(new_id, id) AS name FROM temp.m_unit) u"
        " WHERE u.rid = m_body.unit AND m_body.target IS NOT u.name"
    )
    wanted = job.wants(v2.BODY_ID)
    derived = f"sha256_hex({_BODY_KEY.format('type', 'ifnull(new_target, target)')})"
    db.execute(
        f"UPDATE temp.m_body SET new_id = {derived} WHERE {derived} IS NOT NULL AND {derived} IS NOT id"
        f" AND (new_target IS NOT NULL OR {int(wanted)})"
    )
    changed = "(new_id IS NOT NULL OR new_target IS NOT NULL)"
    job.done["rekey-bodies"] += job.count(f"SELECT count(*) FROM temp.m_body WHERE NOT is_new AND {changed}")
    if wanted:
        left = job.count(f"SELECT count(*) FROM temp.m_body WHERE new_id IS NULL AND {derived} IS NOT id")
        job.leave(v2.BODY_ID, tr("one of the fields that its id follows from is missing"), left)


#: What cannot be a number in the full-text index, or has one above it.
_HIGHEST = 1 << 53


def number_bodies(job: Job) -> None:
    """Give bodies without a number in the full-text index, or with that of another, the next ones."""
    job.db.execute("DROP TABLE IF EXISTS temp.m_number")
    job.db.execute(
        "CREATE TEMP TABLE m_number AS SELECT rid FROM (SELECT rid, number, row_number() OVER"
        " (PARTITION BY number ORDER BY rid) AS place FROM temp.m_body)"
        f" WHERE typeof(number) <> 'integer' OR number NOT BETWEEN -{_HIGHEST} AND {_HIGHEST} OR place > 1"
    )
    top = (
        "SELECT max(0, ifnull(max(number), 0)) FROM temp.m_body WHERE typeof(number) = 'integer'"
        f" AND number BETWEEN -{_HIGHEST} AND {_HIGHEST}"
    )
    numbered = f"SELECT rid, ({top}) + row_number() OVER (ORDER BY rid) AS number FROM temp.m_number"
    job.db.execute(f"UPDATE temp.m_body SET new_number = n.number FROM ({numbered}) n WHERE n.rid = m_body.rid")
    job.done["number-bodies"] += job.count(
        "SELECT count(*) FROM temp.m_body WHERE NOT is_new AND new_number IS NOT NULL"
    )


def clashes(job: Job) -> bool:
    """Tell whether two rows would have one id afterwards."""
    return any(
        job.count(f"SELECT EXISTS (SELECT 1 FROM temp.{table} GROUP BY ifnull(new_id, id) HAVING count(*) > 1"
                  " AND ifnull(new_id, id) IS NOT NULL)")
        for table in ("m_unit", "m_body")
    )  # fmt: skip
